"""Exactly once (G4), elastic order (G5) and positions (G6): whole jobs against the order of the design, slowly."""

import json
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds

from shard_writer import Manifest
from shard_writer.errors import SetError, SettingError
from tests.marked import write_marked
from tests.worlds import canonical, canonical_steps, job, layouts, rest_of_epoch, steps_of
from train import ShardLoader
from train.batches import rebatch

Marked = Callable[..., Manifest]
Layout = tuple[int, int, int]  # ranks, workers, batch size
STREAMS, GLOBAL_BATCH = 72, 72
LAYOUTS = sorted(layouts(STREAMS, GLOBAL_BATCH))
REAL_WORKERS = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """72 shards of 7 or 8 sequences, 530 in all."""
    return write_marked(tmp_path_factory.mktemp("even") / "set", 72, [8] * 26 + [7] * 46)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Nine shards of very different size, 613 sequences in all."""
    return write_marked(tmp_path_factory.mktemp("uneven") / "set", 9, [3, 120, 41, 41, 200, 7, 90, 1, 110])


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


# Positions


def after(manifest: Manifest, layout: Layout, epoch: int, batches: int) -> dict[str, Any]:
    """The state of a job that has taken `batches` batches a rank of an epoch, after it has been through JSON."""
    states = []
    for loader in job(manifest, layout[0], batch_size=layout[2], global_batch_size=GLOBAL_BATCH, streams=STREAMS):
        loader.set_epoch(epoch)
        batch = iter(loader)
        for _ in range(batches):
            next(batch)
        states.append(json.dumps(loader.state_dict()))
    assert len(set(states)) == 1, "the position is that of the whole job"
    state: dict[str, Any] = json.loads(states[0])
    return state


def resumed(manifest: Manifest, layout: Layout, state: dict[str, Any], global_batch_size: int) -> list[ShardLoader]:
    """The loaders of a job of another layout that goes on from a state."""
    ranks, workers, batch_size = layout
    loaders = job(
        manifest,
        ranks,
        batch_size=batch_size,
        num_workers=workers,
        streams=STREAMS,
        global_batch_size=global_batch_size,
    )
    for loader in loaders:
        loader.load_state_dict(state)
    return loaders


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


def test_a_state_of_other_data_seed_or_streams_is_refused(even: Manifest, uneven: Manifest) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "seed": 1, "streams": 12}
    state = ShardLoader(even, **settings).state_dict()
    for other, name in [
        (ShardLoader(uneven, **settings), "fingerprint"),
        (ShardLoader(even, **settings | {"seed": 2}), "seed .*1.* 2"),
        (ShardLoader(even, **settings | {"streams": 6}), "streams .*12.* 6"),
    ]:
        with pytest.raises(SetError, match=name):
            other.load_state_dict(state)


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
