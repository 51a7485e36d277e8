"""What is wrong on one node stops all ranks with its name (G8): shards that it does not see, other code, another recipe, a wrong clock."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.recorder import quiet_arguments
from tests.helpers.worlds import job
from tokentar import Manifest
from tokentar.shard_writer.errors import InputError, SetError
from tokentar.shard_writer.versions import versions
from tokentar.train.data.shard_patterns import select_shards
from tokentar.train.distributed import collectives
from tokentar.train.distributed.collectives import compare_clocks, odd_one, together
from tokentar.train.trainer import rank_check
from tokentar.train.trainer.rank_check import Report, compare_ranks
from tokentar.train.trainer.train_loader import TrainLoader
from tokentar.train.trainer.training_arguments import recipe_of

Marked = Callable[..., Manifest]
HERE = socket.gethostname()


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Callable[[], Any]]], list[Any]]:
    """Runs `together` with a call for each rank, one rank after the other; what each gets or raises."""

    def run(calls: list[Callable[[], Any]]) -> list[Any]:
        told: list[Any] = []
        monkeypatch.setattr(collectives, "all_gather", lambda value: told.append(value) or [None] * len(calls))
        for call in calls:
            together(call)
        monkeypatch.setattr(collectives, "all_gather", lambda value: told)
        return [outcome(call) for call in calls]

    return run


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return together(call)
    except (SetError, OSError) as error:
        return error


def refuse() -> Any:
    raise InputError("/data/set: no dataset.json")


def test_ranks_that_all_succeed_get_their_own_results(ranks: Callable[..., list[Any]]) -> None:
    assert ranks([lambda: 1, lambda: 2, lambda: None]) == [1, 2, None]


def test_a_rank_without_the_shards_stops_all_with_the_name_of_its_node(ranks: Callable[..., list[Any]]) -> None:
    errors = ranks([lambda: 1, lambda: select_shards("/nowhere/set"), lambda: 3])
    assert all(isinstance(error, SetError) for error in errors)
    assert len({str(error) for error in errors}) == 1
    assert str(errors[0]).startswith(f"rank 1 on node {HERE}: /nowhere/set: no dataset.json")


def test_of_several_ranks_that_fail_the_first_is_told_and_how_many_there_are(ranks: Callable[..., list[Any]]) -> None:
    def forbidden() -> Any:
        raise PermissionError(13, "Permission denied", "/data/set/train-000000.tar")

    errors = ranks([lambda: 1, forbidden, refuse, refuse])
    assert str(errors[0]) == (
        f"rank 1 on node {HERE}: [Errno 13] Permission denied: '/data/set/train-000000.tar' (and 2 more of 4 ranks)"
    )


def test_a_process_alone_raises_what_it_met() -> None:
    with pytest.raises(InputError, match=r"^/data/set: no dataset\.json$"):
        together(refuse)


def test_a_shard_that_one_rank_cannot_open_stops_it_before_the_ranks_are_compared(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = marked(4, 4)
    for entry in manifest.shards:
        manifest.path(entry).unlink()
    told: list[Any] = []
    monkeypatch.setattr(collectives, "all_gather", lambda value: told.append(value) or [None, value])
    with pytest.raises(SetError, match=rf"rank 1 on node {HERE}: .*train-00000\d\.tar: cannot be read: No such file"):
        next(iter(TrainLoader(job(manifest, 2, batch_size=2)[1])))
    assert len(told) == 1, "the others have their answer"


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([5], None),
        ([5, 5, 5], None),
        ([5, 6], (1, 0)),
        ([6, 5, 5], (0, 1)),
        ([5, 5, 6, 7], (2, 0)),
        ([[1], [1], [2]], (2, 0)),
    ],
)
def test_the_odd_one_is_the_one_unlike_most(values: list[Any], found: tuple[int, int] | None) -> None:
    assert odd_one(values) == found


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("numpy", "1.0", rf"rank 0 has numpy '1\.0', rank 1 has '{versions()['numpy']}'; .* \(rank 0 is on node old\)"),
        (
            "tokentar",
            "0",
            "rank 0 has tokentar '0', rank 1 has '[0-9a-f]{16}'; all ranks need the same data, recipe and code",
        ),
        ("--learning_rate", 0.5, r"rank 0 has --learning_rate 0\.5, rank 1 has 5e-05"),
        ("--logging_steps", 7, "rank 0 has --logging_steps 7, rank 1 has 1"),
        ("fingerprint", "f", "rank 0 has fingerprint 'f', rank 1 has"),
    ],
)
def test_a_node_with_other_code_recipe_or_data_is_the_one_that_is_named(
    key: str, value: Any, message: str, marked: Marked, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(quiet_arguments(tmp_path / "run"))
    loaders = job(marked(6, 4), 3, batch_size=2, streams=6)
    for loader in loaders:
        next(iter(loader))
    reports = [Report.of(loader, recipe) for loader in loaders]
    reports[0] = Report(reports[0].state | {key: value}, 0, reports[0].numbers, "old")
    monkeypatch.setattr(rank_check, "all_gather", lambda report: reports)
    with pytest.raises(SetError, match=message):
        compare_ranks(loaders[1], recipe)


def test_places_and_what_is_said_may_differ_between_nodes(tmp_path: Any) -> None:
    one = quiet_arguments(tmp_path / "one", log_level="info", run_name="a")
    other = quiet_arguments(tmp_path / "other", log_level="error", run_name="b", disable_tqdm=False)
    assert recipe_of(one) == recipe_of(other)
    assert recipe_of(one) != recipe_of(quiet_arguments(tmp_path / "one", learning_rate=1))


@pytest.mark.parametrize(
    ("clocks", "warning"),
    [
        ([100.0], None),
        ([100.0, 100.3, 109.9], None),
        ([100.0, 3700.0, 100.2], "rank 1 on node n1: its clock is +3,600 s from the others'; set it by NTP"),
        ([40.0, 100.0, 100.2], "rank 0 on node n0: its clock is -60 s from the others'"),
    ],
)
def test_a_clock_that_is_off_is_told_with_its_rank(
    clocks: list[float], warning: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = [(clock, f"n{rank}") for rank, clock in enumerate(clocks)]
    monkeypatch.setattr(collectives, "all_gather", lambda value: told)
    compare_clocks()
    assert (warning or "") in caplog.text
    assert bool(caplog.text) == (warning is not None)
