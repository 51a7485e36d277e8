"""Shards are checked before their first row is read; of a set in a store, and of a damaged one, the order stays (G4, G5, G10)."""

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.folder_store import reads, url_of
from tests.helpers.marked import write_marked
from tests.helpers.recorder import RecordingTrainer, quiet_arguments, tiny_model
from tests.helpers.worlds import canonical, job, next_batches
from tokentar import Access, Manifest, SetError, SettingError, ShardLoader, open_shards
from tokentar.train.data.prefetch import Prefetcher

SIZE = 10_240  # bytes of a shard of four marked sequences
STRIDE = 1024  # of which each member takes so many


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Twelve shards of four sequences, which are 12 × 10,240 bytes."""
    return write_marked(tmp_path / "set", 12, 4, vocab_length=300)


@pytest.fixture
def stored(manifest: Manifest) -> Manifest:
    """The same set under a URL."""
    return open_shards(url_of(manifest.folder))


@pytest.fixture
def access(tmp_path: Path) -> Callable[..., Access]:
    """A cache with room for so many bytes."""

    def make(cache_bytes: int = 10**6, **settings: Any) -> Access:
        return Access(cache_dir=str(tmp_path / "cache"), cache_bytes=cache_bytes, **settings)

    return make


def used(cache: Path) -> int:
    """Bytes that lie in a cache, counted when nobody makes room in it."""
    with open(cache / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return sum(path.stat().st_size for path in cache.iterdir())


def test_a_set_in_a_store_is_fetched_once_for_all_epochs_ranks_and_runs(
    manifest: Manifest, stored: Manifest, access: Callable[..., Access]
) -> None:
    for _ in range(2):
        here, there = (
            [next_batches(loader, None) for loader in job(each, 2, batch_size=2, streams=4, access=access())]
            for each in (manifest, stored)
        )
        assert there == here
    assert sorted(reads(manifest.folder)) == [entry.file_name for entry in manifest.shards]


@pytest.mark.parametrize("order", ["epoch", "repeat", "resample"])
def test_with_a_cache_smaller_than_the_set_the_order_is_the_same(
    manifest: Manifest, stored: Manifest, access: Callable[..., Access], tmp_path: Path, order: str
) -> None:
    """Room for two streams, a shard ahead and two to evaluate, of twelve; three epochs' worth of batches."""
    settings: dict[str, Any] = {"batch_size": 4, "streams": 2, "order": order}
    expected = ShardLoader(manifest, **settings)
    loader = ShardLoader(stored, access=access(5 * SIZE), **settings)
    for _ in range(3):
        batches = zip(range(12), expected, loader, strict=False)
        for _, wanted, batch in batches:
            assert torch.equal(batch["input_ids"], wanted["input_ids"])
            assert loader.sample_keys == expected.sample_keys
            assert used(tmp_path / "cache") <= 5 * SIZE
    assert len(reads(manifest.folder)) > 12
    deadline = time.monotonic() + 30
    while loader.pool.notes.total().fetched != len(reads(manifest.folder)):  # those ahead are still under way
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_cache_too_small_for_what_is_open_at_once_is_refused_with_the_size_needed(
    stored: Manifest, access: Callable[..., Access]
) -> None:
    """2 ranks × 1 worker × (2 streams + 1 ahead) + 2 × 2 to evaluate: ten shards."""
    with pytest.raises(
        SettingError, match=r"cache_bytes: 102,399, needed: 102,400 \(2 ranks .*; raise it or set fewer"
    ):
        job(stored, 2, batch_size=2, streams=4, access=access(10 * SIZE - 1))
    loaders = job(stored, 2, batch_size=2, streams=4, access=access(10 * SIZE))
    assert {loader.pool.ahead for loader in loaders} == {1}
    job(stored, 2, batch_size=2, streams=4, access=access(10 * SIZE))


def test_a_cache_that_takes_the_whole_set_is_large_enough_for_any_streams(
    stored: Manifest, access: Callable[..., Access]
) -> None:
    """All twelve shards and two to evaluate, where the streams alone would ask for 49."""
    with pytest.raises(SettingError, match="needed: 143,360 "):
        ShardLoader(stored, batch_size=2, streams=48, access=access(14 * SIZE - 1))
    loader = ShardLoader(stored, batch_size=2, streams=48, access=access(14 * SIZE))
    assert sorted(chain(*next_batches(loader, None))) == list(range(48))


def test_a_resumed_run_fetches_only_what_comes_next(
    manifest: Manifest, stored: Manifest, access: Callable[..., Access]
) -> None:
    """Of 48 sequences 40 are behind: the last shard of each of four streams is left, but for two rows of each."""
    settings: dict[str, Any] = {"batch_size": 4, "streams": 4}
    whole = ShardLoader(manifest, **settings)
    begun = iter(whole)
    for _ in range(10):
        next(begun)
    loader = ShardLoader(stored, access=access(7 * SIZE), **settings)  # the streams, one ahead, two to evaluate
    loader.load_state_dict(whole.state_dict())
    assert next_batches(loader, None) == [whole.sample_numbers.tolist() for _ in begun]
    last = {f"train-{unit:06d}.tar" for unit in loader.order.dealt(0)[-4:].tolist()}
    assert last <= set(reads(manifest.folder))
    assert len(reads(manifest.folder)) <= len(last) + 1


def mapped(folder: Path) -> set[str]:
    """The shards below a folder that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if line.endswith(".tar") and str(folder) in line}


def test_few_shards_are_open_at_once(tmp_path: Path) -> None:
    """Five streams: as many shards, and as many ahead, of a hundred."""
    manifest = write_marked(tmp_path / "many", 100, 4)
    loader = ShardLoader(manifest, batch_size=4, streams=5)
    most = max(len(mapped(manifest.folder)) for _ in loader)
    assert 5 <= most <= 10
    assert loader.pool.notes.total().shards >= 100
    assert mapped(manifest.folder) == set()


def test_threads_begin_with_few_shards_and_open_none_that_was_found_right(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    begin = Prefetcher._begin
    monkeypatch.setattr(Prefetcher, "_begin", lambda opener, index: (begun.append(index), begin(opener, index))[1])
    loader = ShardLoader(manifest, batch_size=1, streams=12, rank=0, world_size=1)
    rows = iter(loader)
    counts = []
    for _ in range(12):
        next(rows)
        counts.append(len(begun))
    assert counts == [2, 4, 6, 8, 10, 12, 12, 12, 12, 12, 12, 12]
    assert sorted(begun) == list(range(12))
    list(rows)
    assert sorted(chain.from_iterable(numbers(loader))) == list(range(48))
    assert len(begun) == 12


def descriptors(folder: Path) -> int:
    """How many files below a folder this process has open."""
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(str(folder) in os.readlink(link) for link in links if link.is_symlink())


def test_what_was_held_is_let_go(stored: Manifest, access: Callable[..., Access], tmp_path: Path) -> None:
    loader = ShardLoader(stored, batch_size=4, streams=2, access=access(5 * SIZE))
    for _ in range(3):
        for _ in loader:
            assert len(mapped(tmp_path / "cache")) <= 3, "one for each stream and one ahead"
    while descriptors(tmp_path / "cache"):  # those ahead are let go by the threads that fetch them
        time.sleep(0.01)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)


def cut(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "flipped byte": (flip, "checksum [0-9a-f]{16}, needed [0-9a-f]{16}"),
    "empty": (cut(0), "0 bytes, needed 10240; 0 of 4 sequences are there"),
    "cut in a header": (cut(STRIDE + 100), "1124 bytes, needed 10240; 1 of 4 sequences are there"),
    "cut in a body": (cut(2 * STRIDE + 700), "2748 bytes, needed 10240; 2 of 4"),
    "cut between members": (cut(2 * STRIDE), "2048 bytes, needed 10240; 2 of 4"),
    "missing": (Path.unlink, "cannot be read: No such file or directory"),
}


@pytest.fixture(params=DAMAGES)
def damage(request: pytest.FixtureRequest, manifest: Manifest) -> str:
    """Damages shard 7 of the set, which is sequences 28 to 31; what is to be said of it."""
    inflict, text = DAMAGES[request.param]
    inflict(manifest.folder / "train-000007.tar")
    return re.escape(f"{manifest.folder}/train-000007.tar: ") + text


def test_damage_is_an_error_that_names_the_shard(manifest: Manifest, damage: str) -> None:
    with pytest.raises(SetError, match=damage + ".*verify"):
        for _ in ShardLoader(manifest, batch_size=4, streams=4):
            pass


def test_a_worker_says_the_same_in_one_line(manifest: Manifest) -> None:
    flip(manifest.folder / "train-000007.tar")
    with pytest.raises(SetError) as caught:
        for _ in ShardLoader(manifest, batch_size=4, streams=4, num_workers=2):
            pass
    assert re.fullmatch(r"/\S+/train-000007\.tar: checksum .* writes it again", str(caught.value))


def numbers(loader: ShardLoader) -> Iterator[list[int]]:
    """The sequences of each batch that are there, once labels have been seen to be of these alone."""
    for batch in loader:
        is_there = batch["labels"][:, 0] != -100
        assert torch.equal(batch["labels"] != -100, is_there[:, None].expand(-1, 8))
        assert batch["input_ids"].shape == (loader.batch_size, 8)
        assert batch["input_ids"][is_there, 0].tolist() == loader.sample_numbers.tolist()
        yield loader.sample_numbers.tolist()


def test_damage_may_be_left_out_and_changes_nothing_else(
    manifest: Manifest, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = job(manifest, 2, batch_size=4, streams=4, access=Access(bad_shards="skip"))
    for epoch in (0, 1):
        samples = canonical(manifest, whole[0].order, epoch)
        for rank, loader in enumerate(whole):
            mine = samples[rank::2]
            wanted = [[n for n in mine[start : start + 4] if n not in range(28, 32)] for start in range(0, 24, 4)]
            assert list(numbers(loader)) == wanted
    assert sum(loader.left_out for loader in whole) == 8
    assert re.search("left out: " + damage, caplog.text)


def test_the_same_rows_are_left_out_for_every_number_of_ranks_and_workers(manifest: Manifest) -> None:
    """Row ranges of shards 3 and 7 go to several streams."""
    for index in (3, 7):
        flip(manifest.folder / f"train-{index:06d}.tar")
    settings: dict[str, Any] = {"streams": 24, "global_batch_size": 24, "access": Access(bad_shards="skip")}
    steps = {}
    for ranks, workers in ((1, 0), (2, 0), (3, 0), (1, 2), (2, 1)):
        loaders = job(manifest, ranks, batch_size=24 // ranks, num_workers=workers, **settings)
        turns = zip(*(numbers(loader) for loader in loaders), strict=True)
        steps[ranks, workers] = [sorted(chain(*turn)) for turn in turns]
        assert sum(loader.left_out for loader in loaders) == 8
        assert set(chain(*(loader.pool.notes.damaged() for loader in loaders))) == {3, 7}
    assert [steps[1, 0]] * 5 == list(steps.values())
    assert sorted(chain(*steps[1, 0])) == [n for n in range(48) if n // 4 not in (3, 7)]


def test_a_checkpoint_and_the_log_name_what_was_left_out_also_after_a_resume(
    manifest: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip(manifest.folder / "train-000007.tar")
    left_out = []
    for steps in (6, 12):
        args = quiet_arguments(
            tmp_path / "run", max_steps=steps, per_device_train_batch_size=4, save_strategy="steps", save_steps=6
        )
        access = Access(bad_shards="skip")
        trainer = RecordingTrainer(model=tiny_model(), args=args, shards=manifest, streams=4, access=access)
        trainer.train(resume_from_checkpoint=True)
        left_out.append(trainer.train_loader.left_out())
    assert left_out[1] == {"rows": 4, "shards": ["train-000007"]}
    assert left_out[0]["rows"] <= 4
    assert '"rows": 4' in (tmp_path / "run" / "checkpoint-12" / "data_position.json").read_text()
    assert "left out: " in caplog.text


def test_evaluation_has_room_beside_what_training_holds(
    manifest: Manifest, stored: Manifest, access: Callable[..., Access], tmp_path: Path
) -> None:
    """The least that two streams and evaluation need; where that is too little, they wait for one another."""
    losses, validation = [], write_marked(tmp_path / "other", 6, 3, vocab_length=300)
    for name, shards, others in (
        ("local", manifest, validation),
        ("stored", stored, open_shards(url_of(validation.folder))),
    ):
        args = quiet_arguments(
            tmp_path / name, max_steps=6, per_device_train_batch_size=4, eval_strategy="steps", eval_steps=2
        )
        torch.manual_seed(0)
        trainer = RecordingTrainer(
            model=tiny_model(), args=args, shards=shards, validation_shards=others, streams=2, access=access(5 * SIZE)
        )
        trainer.train()
        losses.append([line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line])
    assert len(losses[0]) == 3
    assert losses[1] == losses[0]


def test_what_to_do_with_damage_is_one_of_two() -> None:
    with pytest.raises(SettingError, match="bad_shards: 'warn', needed: error or skip"):
        Access(bad_shards="warn")
