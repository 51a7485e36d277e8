"""Exactly once (G4) and elastic order (G5): whole jobs against the order of the design, slowly."""

import random
import tarfile
from collections.abc import Callable

import numpy as np
import pytest
import torch
import webdataset as wds

from tests.helpers.worlds import (
    GLOBAL_BATCH,
    LAYOUTS,
    STREAMS,
    canonical,
    canonical_steps,
    job,
    rest_of_epoch,
    steps_of,
    write_even,
    write_uneven,
)
from tokentar import Manifest, ShardLoader
from tokentar.shard_writer.errors import SettingError
from tokentar.train.data.batches import rebatch

Marked = Callable[..., Manifest]
REAL_WORKERS = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """530 sequences in shards that are equal up to one."""
    return write_even(tmp_path_factory.mktemp("even") / "set")


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """613 sequences in shards of very different size."""
    return write_uneven(tmp_path_factory.mktemp("uneven") / "set")


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_every_sequence_is_read_exactly_once(
    uneven: Manifest, ranks: int, workers: int, batch_size: int, accumulation: int
) -> None:
    size = ranks * batch_size * accumulation
    settings = {"num_workers": workers, "batch_size": batch_size, "global_batch_size": size}
    left_out = []
    for epoch in (0, 1):
        loaders = job(uneven, ranks, **settings)
        for loader in loaders:
            loader.set_epoch(epoch)
        plan, order = loaders[0].plan, loaders[0].order
        read = [rest_of_epoch(loader) for loader in loaders]
        assert {len(batches) for batches in read} == {plan.batches} == {len(loader) for loader in loaders}
        assert {len(batch) for batches in read for batch in batches} == {batch_size}

        numbers = [number for batches in read for batch in batches for number in batch]
        assert len(set(numbers)) == len(numbers), "read twice"
        left_out.append(set(range(613)) - set(numbers))
        assert len(left_out[-1]) == plan.left_out < order.streams + size
        assert steps_of(read, size) == canonical_steps(canonical(uneven, order, epoch), size)
    if left_out[0]:
        assert left_out[0] != left_out[1]


def test_the_sequences_of_a_step_do_not_depend_on_the_layout(even: Manifest) -> None:
    assert len(LAYOUTS) > 30
    epoch, seen = 5, {}
    for ranks, workers, batch_size in LAYOUTS:
        loaders = job(
            even,
            ranks,
            batch_size=batch_size,
            num_workers=workers,
            streams=STREAMS,
            global_batch_size=GLOBAL_BATCH,
            seed=7,
        )
        for loader in loaders:
            loader.set_epoch(epoch)
        seen[ranks, workers, batch_size] = steps_of([rest_of_epoch(loader) for loader in loaders], GLOBAL_BATCH)
    expected = canonical_steps(canonical(even, loaders[0].order, epoch), GLOBAL_BATCH)
    assert len(expected) == 530 // 72
    assert {layout for layout, steps in seen.items() if steps != expected} == set()


def test_samples_come_in_canonical_order_and_ranks_take_them_in_turn(even: Manifest) -> None:
    samples = canonical(even, ShardLoader(even, batch_size=1, streams=24, num_workers=3).order, 0)
    for workers in (0, 2, 3):
        for rank, loader in enumerate(job(even, 4, batch_size=5, num_workers=workers, streams=24)):
            mine = [number for batch in rest_of_epoch(loader) for number in batch]
            assert mine == samples[rank::4][: len(mine)]


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 0), (1, 3), (2, 2), (4, 3), (8, 1)])
def test_a_reader_reads_the_units_that_webdataset_deals_to_it(
    even: Manifest, monkeypatch: pytest.MonkeyPatch, ranks: int, workers: int
) -> None:
    loaders = job(even, ranks, batch_size=workers or 1, num_workers=workers, streams=STREAMS)
    order, dealt_to_all = loaders[0].order, []
    for rank, loader in enumerate(loaders):
        batches = rest_of_epoch(loader)
        for worker in range(max(1, workers)):
            variables = {"RANK": rank, "WORLD_SIZE": ranks, "WORKER": worker, "NUM_WORKERS": max(1, workers)}
            for name, value in variables.items():
                monkeypatch.setenv(name, str(value))
            units = list(wds.split_by_worker(wds.split_by_node(iter(order.dealt(0).tolist()))))
            dealt_to_all += units
            shards = set(units)  # as no shard is cut
            read = {batch[worker] for batch in batches}  # with a row of each worker in a batch
            assert shards == {int(np.searchsorted(even.first_sequences, number, "right")) - 1 for number in read}
    assert sorted(dealt_to_all) == list(range(len(order.units)))


@REAL_WORKERS
@pytest.mark.parametrize(
    ("ranks", "workers", "batch_size", "accumulation"), [(1, 1, 5, 1), (1, 2, 4, 3), (1, 3, 7, 1), (2, 2, 3, 2)]
)
def test_dataloader_workers_hand_over_the_same_batches(
    uneven: Manifest, ranks: int, workers: int, batch_size: int, accumulation: int
) -> None:
    size = ranks * batch_size * accumulation
    loaders = job(uneven, ranks, batch_size=batch_size, num_workers=workers, global_batch_size=size)
    for loader in loaders:
        played = rest_of_epoch(loader)
        read = [(loader.sample_numbers.tolist(), batch["input_ids"][:, 3].tolist()) for batch in loader]
        assert [numbers for numbers, _ in read] == [ids for _, ids in read] == played


@REAL_WORKERS
@pytest.mark.parametrize("workers", [0, 2])
def test_reading_does_not_move_the_global_random_numbers(even: Manifest, workers: int) -> None:
    state = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    for _ in ShardLoader(even, batch_size=64, num_workers=workers):
        pass
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1:] == (np.random.get_state()[1].tolist(), random.getstate())


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("block_rows", [1, 2, 7, 100])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_rebatch_interleaves_the_rows_of_workers(workers: int, block_rows: int, batch_size: int) -> None:
    for total in (0, 1, 5, 12, 29):
        lanes = [np.arange(worker, total, workers) for worker in range(workers)]
        rounds = range(0, len(lanes[0]), block_rows)
        blocks = (
            (part, np.repeat(part[:, None], 4, axis=1))
            for start in rounds
            for lane in lanes
            if len(part := lane[start : start + block_rows])
        )
        batches = list(rebatch(blocks, workers, batch_size, 4))
        whole = total // batch_size * batch_size
        assert [number for numbers, _ in batches for number in numbers.tolist()] == list(range(whole))
        assert all((ids == numbers[:, None]).all() and ids.dtype == np.int64 for numbers, ids in batches)


@REAL_WORKERS
@pytest.mark.parametrize("workers", [0, 2])
def test_sample_keys_name_the_tar_members_read(uneven: Manifest, workers: int) -> None:
    members = {}
    for entry in uneven.shards:
        with tarfile.open(uneven.path(entry)) as tar:
            members |= {m.name: tar.extractfile(m).read()[-16:] for m in tar}  # type: ignore[union-attr]
    loader = ShardLoader(uneven, batch_size=6, num_workers=workers)
    for batch in loader:
        for key, row in zip(loader.sample_keys, batch["input_ids"], strict=True):
            assert members[f"{key}.input_ids.npy"] == row.numpy().astype("<u2").tobytes()


def test_batches_hold_ids_and_labels_for_a_loss(even: Manifest) -> None:
    batch = next(iter(ShardLoader(even, batch_size=5)))
    assert set(batch) == {"input_ids", "labels"}
    assert batch["input_ids"].shape == batch["labels"].shape == (5, 8)
    assert batch["input_ids"].dtype == torch.int64
    assert torch.equal(batch["input_ids"], batch["labels"])


def test_every_epoch_and_seed_has_its_own_order(even: Manifest) -> None:
    loader = ShardLoader(even, batch_size=10)
    epochs = [rest_of_epoch(loader) for _ in range(3)]
    other = rest_of_epoch(ShardLoader(even, batch_size=10, seed=1))
    assert len({str(batches) for batches in [*epochs, other]}) == 4
    assert epochs == [rest_of_epoch(loader) for loader in job_at_epochs(even, 3)], "and is the same again"


def job_at_epochs(manifest: Manifest, epochs: int) -> list[ShardLoader]:
    loaders = [ShardLoader(manifest, batch_size=10) for _ in range(epochs)]
    for epoch, loader in enumerate(loaders):
        loader.set_epoch(epoch)
    return loaders


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_length_of_an_epoch_does_not_grow_with_workers(marked: Marked, workers: int) -> None:
    loader = ShardLoader(marked(3, 4), batch_size=2, num_workers=workers)
    assert len(loader) == 6
    assert sorted(number for batch in rest_of_epoch(loader) for number in batch) == list(range(12))


@pytest.mark.parametrize(("ranks", "workers"), [(2, 0), (2, 2), (1, 4), (3, 4)])
def test_fewer_shards_than_readers_are_cut_and_all_is_read(marked: Marked, ranks: int, workers: int) -> None:
    read = [rest_of_epoch(loader) for loader in job(marked(3, 4), ranks, batch_size=1, num_workers=workers)]
    assert [len(batches) for batches in read] == [12 // ranks] * ranks
    assert sorted(number for batches in read for batch in batches for number in batch) == list(range(12))


def test_fewer_rows_than_readers_are_refused_before_anything_is_read(marked: Marked) -> None:
    with pytest.raises(SettingError, match="12 sequences for 14 ranks × workers"):
        ShardLoader(marked(3, 4), batch_size=1, rank=0, world_size=2, num_workers=7)


def test_an_order_that_is_none_is_refused(even: Manifest) -> None:
    with pytest.raises(SettingError, match="order: 'random', needed: epoch"):
        ShardLoader(even, batch_size=1, order="random")
