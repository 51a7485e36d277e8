"""What Trainer iterates: nothing is split again, and ranks that read the same stop at the first step (G8)."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import pytest
import torch

from tests.helpers.worlds import job, next_batches, rest_of_epoch
from tokentar import Manifest, ShardLoader
from tokentar.shard_writer.errors import SetError
from tokentar.train.trainer import rank_check, read_counts
from tokentar.train.trainer.rank_check import compare_ranks
from tokentar.train.trainer.train_loader import TrainLoader

Marked = Callable[..., Manifest]
Compare = Callable[[Iterable[ShardLoader]], None]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Lets ranks take a batch each and compare: each one's report is noted, then every rank is given all of them."""

    def compare_all(loaders: Iterable[ShardLoader]) -> None:
        loaders, reports = list(loaders), []
        for loader in loaders:
            next(iter(loader))
            monkeypatch.setattr(rank_check, "all_gather", lambda report: reports.append(report) or [report])
            compare_ranks(loader)
        monkeypatch.setattr(rank_check, "all_gather", lambda report: reports)
        errors = [error for loader in loaders for error in [error_of(loader)] if error]
        assert len(errors) in (0, len(loaders)), "all ranks stop or none"
        assert len(set(errors)) < 2, "and say the same"
        if errors:
            raise SetError(errors[0])

    return compare_all


def error_of(loader: ShardLoader) -> str | None:
    try:
        compare_ranks(loader)
    except SetError as error:
        return str(error)
    return None


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_that_read_their_own_sequences_go_on(marked: Marked, compare: Compare, ranks: int) -> None:
    compare(job(marked(8, 4), ranks, batch_size=2, num_workers=0))


def test_ranks_that_read_the_same_sequence_are_stopped(marked: Marked, compare: Compare) -> None:
    manifest = marked(8, 4)
    with pytest.raises(SetError, match=r"ranks 0 and 1 both read sequence \d+; .* give ShardLoader each process's own"):
        compare(ShardLoader(manifest, batch_size=2, rank=0, world_size=1) for _ in range(2))


def test_one_rank_too_many_is_found_among_others(marked: Marked, compare: Compare) -> None:
    loaders = job(marked(8, 4), 4, batch_size=2)
    with pytest.raises(SetError, match="ranks 1 and 3 both read sequence"):
        compare([*loaders[:3], ShardLoader(loaders[0].manifest, batch_size=2, rank=1, world_size=4)])


@pytest.mark.parametrize("order", ["epoch", "repeat", "resample"])
def test_ranks_that_take_themselves_for_one_are_stopped_in_any_order(
    marked: Marked, compare: Compare, order: str
) -> None:
    manifest = marked(8, 4)
    with pytest.raises(SetError, match=r"ranks 0 and 1 both read (sequence|as rank) \d+; .* each process's own rank"):
        compare(ShardLoader(manifest, batch_size=2, rank=0, world_size=1, order=order) for _ in range(2))


def test_ranks_that_draw_the_same_shard_go_on(marked: Marked, compare: Compare) -> None:
    """With this seed both of two streams begin with the same of two shards."""
    loaders = job(marked(2, 8), 2, batch_size=8, order="resample", streams=2, seed=1)
    read = [{number for batch in next_batches(loader, 1) for number in batch} for loader in loaders]
    assert read[0] == read[1]
    compare(loaders)


def test_ranks_whose_first_batch_lies_across_two_epochs_go_on(marked: Marked, compare: Compare) -> None:
    """Of 16 sequences an epoch, the batch is the last 8 of one and the first 8 of the next."""
    loaders = job(marked(4, 4), 2, batch_size=8, order="repeat", streams=2)
    for loader in loaders:
        loader.load_state_dict(loader.state_dict() | {"position": 8})
    read = [{number for batch in next_batches(loader, 1) for number in batch} for loader in loaders]
    assert read[0] & read[1]
    compare(loaders)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 5}, "rank 1 has seed 5, rank 0 has 0; all ranks need the same data, recipe and code"),
        ({"streams": 4}, "rank 1 has streams 4, rank 0 has 8"),
        ({"batch_size": 3}, "rank 1 has position 6, rank 0 has 4"),
    ],
)
def test_ranks_of_another_order_are_stopped(
    marked: Marked, compare: Compare, settings: dict[str, Any], message: str
) -> None:
    same: dict[str, Any] = {"batch_size": 2, "streams": 8, "world_size": 2}
    manifest = marked(8, 4)
    with pytest.raises(SetError, match=message):
        compare([ShardLoader(manifest, rank=0, **same), ShardLoader(manifest, rank=1, **same | settings)])


def test_ranks_with_other_data_are_stopped(marked: Marked, compare: Compare) -> None:
    sets = [marked(8, 4, "one"), marked(8, 5, "two")]
    with pytest.raises(SetError, match=r"rank 1 has fingerprint '\w+', rank 0 has '\w+'"):
        compare(ShardLoader(data, rank=rank, world_size=2, batch_size=2, streams=8) for rank, data in enumerate(sets))


def test_ranks_of_another_epoch_are_stopped(marked: Marked, compare: Compare) -> None:
    loaders = job(marked(8, 4), 2, batch_size=2)
    loaders[1].set_epoch(3)
    with pytest.raises(SetError, match="rank 1 has epoch 3, rank 0 has 0"):
        compare(loaders)


def test_ranks_are_compared_once(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(rank_check, "all_gather", lambda report: compared.append(report) or [report])
    source = TrainLoader(ShardLoader(marked(8, 4), batch_size=2))
    for _ in range(2):
        for _ in source:
            pass
    assert len(compared) == 1


def test_a_feed_hands_on_what_the_loader_yields(marked: Marked) -> None:
    manifest = marked(8, 4)
    source = TrainLoader(ShardLoader(manifest, batch_size=2))
    assert not isinstance(source, torch.utils.data.DataLoader), "accelerate would split it"
    assert len(source) == 16
    assert source.batch_size == 2
    assert not hasattr(source, "set_epoch"), "Trainer, which counts otherwise after a resume, would set it"
    expected = ShardLoader(manifest, batch_size=2)
    for _ in range(2):
        assert [batch["input_ids"][:, 0].tolist() for batch in source] == rest_of_epoch(expected)
    assert source.waited > 0


def test_an_epoch_that_is_not_asked_for_its_end_is_followed_by_the_next(marked: Marked) -> None:
    """Trainer takes as many batches as an epoch has, or fewer where a callback stops it, and then iterates anew."""
    manifest = marked(8, 4)
    expected = ShardLoader(manifest, batch_size=2)
    epochs = [rest_of_epoch(expected) for _ in range(3)]
    source = TrainLoader(ShardLoader(manifest, batch_size=2))
    for epoch, taken in enumerate((16, 5, 16)):
        batches = [batch["input_ids"][:, 0].tolist() for batch in islice(iter(source), taken)]
        assert batches == epochs[epoch][:taken]
        assert source.epochs_done == epoch + taken / 16


def test_a_position_is_where_the_next_iteration_begins_whatever_was_read_before(marked: Marked) -> None:
    source = TrainLoader(ShardLoader(marked(8, 4), batch_size=2))
    taken = [batch["input_ids"][:, 0].tolist() for batch in islice(iter(source), 5)]
    state = source.loader.state_dict() | {"position": 4, "consumed": 4}
    source.go_to(state)
    assert not source.has_begun
    rest = [batch["input_ids"][:, 0].tolist() for batch in source]
    assert rest[:3] == taken[2:]
    assert len(rest) == 14


def test_the_tally_counts_reads_and_finds_overlap(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = marked(4, 4)
    source = TrainLoader(ShardLoader(manifest, batch_size=2))
    for _ in range(2):
        for _ in source:
            pass
    assert source.tally.by_rank() == [32]
    assert source.tally.overlap() == 0, "once in each of two epochs"
    monkeypatch.setattr(read_counts, "all_gather", lambda value: [value, value])
    assert source.tally.by_rank() == [32, 32]
    assert source.tally.overlap() == 32, "all of it was read by both ranks"


def test_the_tally_of_an_order_without_end_counts_the_epochs_that_were_read(marked: Marked) -> None:
    """Batches of 5 in epochs of 16 sequences: after 7 batches, 35 reads in three epochs."""
    source = TrainLoader(ShardLoader(marked(4, 4), batch_size=5, order="repeat", streams=4))
    for _ in zip(range(7), source, strict=False):
        pass
    assert source.tally.by_rank() == [35]
    assert source.loader.epochs_read == range(1, 3)
    assert source.tally.overlap() == 0
