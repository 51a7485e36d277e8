"""Positions (G6): a job that goes on in any layout sees what the one that was not stopped saw."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.worlds import (
    GLOBAL_BATCH,
    LAYOUTS,
    STREAMS,
    Layout,
    after,
    canonical,
    canonical_steps,
    rest_of_epoch,
    resumed,
    steps_of,
)
from tokentar import Manifest, ShardLoader
from tokentar.shard_writer.errors import SetError, SettingError

Marked = Callable[..., Manifest]
REAL_WORKERS = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize("before", [(1, 0, 72), (2, 0, 12), (4, 0, 3)], ids=str)
def test_a_job_goes_on_at_its_next_step_in_any_layout(even: Manifest, before: Layout, epoch: int) -> None:
    steps = canonical_steps(canonical(even, ShardLoader(even, batch_size=1, streams=STREAMS).order, epoch), 72)
    for done in (1, 6):
        state = after(even, before, epoch, done * 72 // (before[0] * before[2]))
        for layout in random.Random(done + before[0]).sample(LAYOUTS, 5):
            read = [rest_of_epoch(loader) for loader in resumed(even, layout, state, GLOBAL_BATCH)]
            assert steps_of(read, GLOBAL_BATCH) == steps[done:], layout


@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize(
    ("layout", "global_batch_size"), [((1, 0, 5), 10), ((3, 2, 7), 21), ((8, 3, 2), 16), ((4, 3, 9), 108)]
)
def test_a_job_with_another_global_batch_reads_what_remains_once(
    even: Manifest, layout: Layout, global_batch_size: int, epoch: int
) -> None:
    samples = canonical(even, ShardLoader(even, batch_size=1, streams=STREAMS).order, epoch)
    for batches in (1, 2, 7, 36):  # of 2 × 6 samples: also positions at which no step ends
        state = after(even, (2, 0, 6), epoch, batches)
        read = [rest_of_epoch(loader) for loader in resumed(even, layout, state, global_batch_size)]
        rest = samples[12 * batches :]
        if len(rest) < global_batch_size:  # nothing more to take: the next epoch begins
            rest = canonical(even, ShardLoader(even, batch_size=1, streams=STREAMS).order, epoch + 1)
        assert steps_of(read, global_batch_size) == canonical_steps(rest, global_batch_size)


@REAL_WORKERS
def test_dataloader_workers_go_on_where_a_job_stopped(even: Manifest) -> None:
    samples = canonical(even, ShardLoader(even, batch_size=1, streams=STREAMS).order, 2)
    loaders = resumed(even, (1, 2, 8), after(even, (3, 0, 8), 2, 6), GLOBAL_BATCH)
    numbers = [number for _ in loaders[0] for number in loaders[0].sample_numbers.tolist()]
    assert numbers == samples[144:504]
    assert loaders[0].state_dict()["epoch"] == 3


@REAL_WORKERS
def test_batches_that_workers_read_ahead_do_not_count(even: Manifest) -> None:
    loader = ShardLoader(even, batch_size=4, num_workers=2, streams=STREAMS)
    batches = iter(loader)
    next(batches)
    next(batches)
    assert loader.state_dict()["position"] == 8
    batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("done", [3, 10])
def test_the_second_pass_goes_on_as_the_first_does(marked: Marked, done: int) -> None:
    manifest = marked(4, 4)
    loader, passes = ShardLoader(manifest, batch_size=2), []
    states = []
    for _ in range(2):
        for _ in loader:
            passes.append(loader.sample_numbers.tolist())
            states.append(loader.state_dict())
    again = ShardLoader(manifest, batch_size=2)
    again.load_state_dict(states[done - 1])
    rest = [again.sample_numbers.tolist() for _ in range(2 if done < 8 else 1) for _ in again]
    assert len(passes) == 16
    assert rest == passes[done:]


def test_a_resume_opens_no_shard_that_lies_behind_it(marked: Marked) -> None:
    manifest = marked(6, 4)
    loader = ShardLoader(manifest, batch_size=4, streams=1)
    whole = rest_of_epoch(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    for shard in loader.order.dealt(0)[:4]:  # units, and shards as none is cut
        manifest.path(manifest.shards[shard]).unlink()
    again = ShardLoader(manifest, batch_size=4, streams=1)
    again.load_state_dict(loader.state_dict())
    assert rest_of_epoch(again) == whole[4:]


def other_tokenizer(manifest: Manifest) -> Manifest:
    return replace(
        manifest, info=replace(manifest.info, tokenizer=replace(manifest.info.tokenizer, fingerprint="f" * 32))
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, "the seed of the order was 1 and is 2 now; use the same, or start anew"),
        ({"streams": 6}, "the number of streams was 12 and is 6 now; use the same, or start anew"),
        ({"order": "repeat"}, "the order was 'epoch' and is 'repeat' now; use the same, or start anew"),
        ({"shards": "uneven"}, r"the data \(fingerprint of its shards\) was '\w+' and is '\w+' now; use the same"),
        ({"shards": "other tokenizer"}, r"the tokenizer \(fingerprint\) was '0+' and is 'f+' now; use the same"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_what_differs(
    even: Manifest, uneven: Manifest, change: dict[str, Any], message: str
) -> None:
    settings: dict[str, Any] = {"shards": even, "batch_size": 4, "seed": 1, "streams": 12}
    state = ShardLoader(**settings).state_dict()
    sets = {"uneven": uneven, "other tokenizer": other_tokenizer(even)}
    changed = {key: sets.get(value, value) for key, value in change.items()}
    with pytest.raises(SetError, match=message):
        ShardLoader(**settings | changed).load_state_dict(state)


def test_streams_of_a_state_that_this_job_cannot_deal_are_refused_with_those_that_work(even: Manifest) -> None:
    state = ShardLoader(even, batch_size=4, streams=12).state_dict()
    with pytest.raises(SettingError, match=r"streams: 12 .* 5 ranks × workers; .* that work: \[1, 2, 3, 4, 6, 12\]"):
        ShardLoader(even, batch_size=4, rank=0, world_size=5).load_state_dict(state)


def test_the_streams_of_a_state_are_taken_over(even: Manifest) -> None:
    before = ShardLoader(even, batch_size=4, streams=12)
    again = ShardLoader(even, batch_size=4, rank=0, world_size=1)
    again.load_state_dict(before.state_dict())
    assert again.order.streams == 12
    assert rest_of_epoch(again) == rest_of_epoch(before)


def test_a_state_of_a_part_of_the_set_is_refused(even: Manifest) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "streams": 1}
    part = even.choose({entry.shard for entry in even.shards[1:]})
    with pytest.raises(SetError, match="fingerprint"):
        ShardLoader(part, **settings).load_state_dict(ShardLoader(even, **settings).state_dict())


def test_set_epoch_starts_an_epoch_unless_it_is_the_one_at_hand(even: Manifest) -> None:
    loader = ShardLoader(even, batch_size=24, streams=STREAMS)
    first, second = rest_of_epoch(loader), rest_of_epoch(loader)
    state = after(even, (1, 0, 24), 1, 3)
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert rest_of_epoch(loader) == second[3:], "a loaded position stays"
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert rest_of_epoch(loader) == first, "another epoch is whole"
    assert rest_of_epoch(loader) == second, "after a whole epoch comes the next"


def test_an_epoch_left_early_starts_anew(even: Manifest) -> None:
    loader = ShardLoader(even, batch_size=24)
    for _ in loader:
        break
    assert len(rest_of_epoch(loader)) == len(loader)


def test_rank_and_world_size_come_from_torchrun(even: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    given = rest_of_epoch(ShardLoader(even, batch_size=4, rank=1, world_size=3))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert rest_of_epoch(ShardLoader(even, batch_size=4)) == given


def test_a_loader_takes_a_path_or_a_manifest(even: Manifest) -> None:
    root: Path = even.root
    assert rest_of_epoch(ShardLoader(str(root), batch_size=4)) == rest_of_epoch(ShardLoader(even, batch_size=4))


def test_consumed_counts_all_epochs(even: Manifest) -> None:
    """504 samples in whole rounds: 21 batches of 24."""
    loader = ShardLoader(even, batch_size=24, streams=STREAMS)
    assert len(rest_of_epoch(loader)) == 21
    assert (loader.epoch, loader.position, loader.consumed) == (1, 0, 504)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    assert (loader.epoch, loader.position, loader.consumed) == (1, 48, 552)
    again = ShardLoader(even, batch_size=10, rank=0, world_size=3, streams=STREAMS)
    again.load_state_dict(loader.state_dict())
    assert again.consumed == 552
    assert len(rest_of_epoch(again)) == 456 // 30
    assert again.consumed == 552 + 450
    again.set_epoch(5)
    assert (again.epoch, again.position, again.consumed) == (5, 0, 1002), "epochs passed over are not consumed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": -4}, "position of the state is -4, needed: 0 or more"),
        ({"position": 1000}, "position of the state is 1000, needed: at most the 504 samples of an epoch"),
        ({"consumed": None}, "consumed of the state is None, needed: 0 or more"),
        ({"epoch": "1"}, "epoch of the state is '1', needed: 0 or more"),
    ],
)
def test_a_damaged_state_is_refused(even: Manifest, change: dict[str, Any], message: str) -> None:
    loader = ShardLoader(even, batch_size=24, streams=STREAMS)
    with pytest.raises(SetError, match=f"cannot go on: {message}"):
        loader.load_state_dict(loader.state_dict() | change)
