"""Adding to a finished set: what is there stays as it is, readers see the old set or the new one, no document comes twice."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.helpers.tokenizers import byte_tokenizer
from tests.helpers.written import Write, contents, jsonl, rows_of
from tokentar import Manifest, SetError, SettingError, ShardLoader, open_shards
from tokentar.shard_writer.format.manifest import manifest_text
from tokentar.shard_writer.maintenance.verify import faults
from tokentar.shard_writer.writing.shard_step import ReduceStep


@pytest.fixture
def write(write: Write, tmp_path: Path) -> Write:
    """The same for numbers of seven digits: with EOS, each fills a sequence of 8 tokens."""

    def run(numbers: range, output: str = "out", **settings: Any) -> Manifest:
        source = tmp_path / f"{numbers.start}-{numbers.stop}.jsonl"
        if not source.exists():
            jsonl(source, [f"{number:07d}" for number in numbers])
        return write(str(source), output, **settings)

    return run


def numbers(manifest: Manifest) -> list[int]:
    """The documents of a set, in order."""
    return [int(bytes(token - 3 for token in row[:7])) for row in rows_of(manifest)]


def shards_in(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Inode and content of all shards and provenance in a folder."""
    return {
        path.name: (path.stat().st_ino, path.read_bytes())
        for path in folder.iterdir()
        if path.suffix in (".tar", ".parquet")
    }


def test_appended_documents_follow_as_further_shards_and_what_exists_is_untouched(write: Write, tmp_path: Path) -> None:
    old = write(range(100), num_shards=4)
    before = shards_in(tmp_path / "out")
    new = write(range(100, 150), append=True)
    assert shards_in(tmp_path / "out").items() >= before.items()
    assert [entry.shard for entry in new.shards] == [f"train-{i:06d}" for i in range(6)]
    assert new.shards[:4] == old.shards
    assert new.num_sequences.tolist() == [25] * 6  # as large as those that exist
    assert numbers(new)[:100] == numbers(old)
    assert sorted(numbers(new)[100:]) == list(range(100, 150))
    assert new.first_sequences.tolist() == [0, 25, 50, 75, 100, 125]
    assert new.fingerprint != old.fingerprint
    assert open_shards(tmp_path / "out") == new
    assert list(faults(new)) == []


def test_totals_add_up_with_the_tail_of_each_writing(write: Write, tmp_path: Path) -> None:
    write(range(10), seq_length=12)  # 80 tokens: 6 sequences, 8 left over
    write(range(10, 21), seq_length=12, append=True)  # 88 tokens: 7 sequences, 4 left over
    info = write(range(21, 25), seq_length=12, append=True).info  # 32 tokens: 2 sequences, 8 left over
    totals = info.totals
    assert (totals.documents, totals.tokens, totals.sequences, totals.tail) == (25, 200, 15, 20)
    assert info.shards == len(open_shards(tmp_path / "out").shards)
    assert [writing["splits"]["train"]["documents"] for writing in info.appended] == [11, 4]
    assert [writing["source"]["input"] for writing in info.appended] == [
        [str(tmp_path / f"{n}.jsonl")] for n in ("10-21", "21-25")
    ]


def test_each_split_grows_by_itself_and_every_key_is_unique(write: Write) -> None:
    write(range(200), num_shards=4, validation_fraction=0.2)
    old = write(range(200, 300), append=True, validation_fraction=0.2)
    new = write(range(300, 350), append=True)  # without a validation split of its own
    assert sorted(numbers(new.split("train")) + numbers(new.split("validation"))) == list(range(350))
    assert new.split("validation").shards == old.split("validation").shards
    names = [entry.shard for entry in new.split("train").shards]
    assert names == [f"train-{i:06d}" for i in range(len(names))]
    assert new.first_sequences.tolist() == [sum(new.num_sequences[:i]) for i in range(len(new.shards))]


def test_documents_are_numbered_on(write: Write, tmp_path: Path) -> None:
    write(range(10), num_shards=1)
    write(range(10, 15), append=True, num_shards=1, shuffle=False)
    table = pq.read_table(tmp_path / "out" / "train-000001.docs.parquet")
    assert table["document"].to_pylist() == list(range(10, 15))
    assert table["place"].to_pylist() == list(range(1, 6))
    assert set(table["source"].to_pylist()) == {str(tmp_path / "10-15.jsonl")}


def test_the_same_input_is_appended_again_only_with_overwrite(write: Write) -> None:
    write(range(20), num_shards=2)
    for overwrite in (False, False, True):
        manifest = write(range(20, 30), append=True, overwrite=overwrite)
    assert sorted(numbers(manifest)) == sorted([*range(20), *range(20, 30), *range(20, 30)])


def test_a_reader_that_opened_the_set_earlier_reads_on_undisturbed(write: Write, tmp_path: Path) -> None:
    write(range(100), num_shards=4)
    loader = ShardLoader(tmp_path / "out", batch_size=5, rank=0, world_size=1)
    batches = iter(loader)
    seen = [*next(batches)["input_ids"][:, :7].tolist()]
    write(range(100, 200), append=True)
    seen += [row for batch in batches for row in batch["input_ids"][:, :7].tolist()]
    assert sorted(int(bytes(token - 3 for token in row)) for row in seen) == list(range(100))


def test_a_training_does_not_go_on_with_a_set_that_has_grown_and_says_so(write: Write, tmp_path: Path) -> None:
    write(range(100), num_shards=4)
    loader = ShardLoader(tmp_path / "out", batch_size=5, rank=0, world_size=1)
    next(iter(loader))
    write(range(100, 200), append=True)
    with pytest.raises(SetError, match=r"cannot go on: the data \(fingerprint of its shards\) was"):
        ShardLoader(tmp_path / "out", batch_size=5, rank=0, world_size=1).load_state_dict(loader.state_dict())


class Watched:
    """os.replace that opens the set before and behind every rename, as a reader might, and stops the run at number `at`."""

    def __init__(self, folder: Path, at: int) -> None:
        self.folder, self.left, self.replace = folder, at, os.replace
        self.seen: list[Manifest] = []

    def __call__(self, source: Any, target: Any) -> None:
        self.seen.append(open_shards(self.folder))
        self.replace(source, target)
        self.seen.append(open_shards(self.folder))
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_whoever_opens_the_set_at_any_moment_sees_the_old_one_or_the_new_one_whole(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write(range(40), num_shards=2)
    watched = Watched(tmp_path / "out", at=0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", watched)
        new = write(range(40, 80), append=True)
    assert all(manifest in (old, new) for manifest in watched.seen)
    assert watched.seen[0] == old
    assert watched.seen[-1] == new
    for manifest in (old, new):
        assert sorted(numbers(manifest)) == list(range(manifest.info.totals.documents))


def test_a_killed_append_goes_on_and_adds_nothing_twice(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = partial(write, range(40, 80), append=True)
    for name in ("whole", "one"):
        write(range(40), name, num_shards=2)
    append("whole")
    expected, at, stopped = contents(tmp_path / "whole"), 0, True
    while stopped:
        at += 1
        write(range(40), f"out{at}", num_shards=2)
        watched = Watched(tmp_path / f"out{at}", at)
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", watched)
            try:
                append(f"out{at}")
                stopped = False
            except KeyboardInterrupt:
                assert sorted(numbers(watched.seen[-1])) in (list(range(40)), list(range(80)))
        if stopped:
            append(f"out{at}")
        assert contents(tmp_path / f"out{at}") == expected, at
    assert at > 9  # plan, task, 2 shards and their provenance, publishing, 4 moves, manifest, dataset.json


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seq_length": 16}, "seq_length: 16, but .*out holds 8"),
        ({"packing": "best_fit"}, "packing: best_fit, but .*out holds wrap"),
        ({"add_bos": True}, r"prefix_ids: \[1\], but .*out holds \[\]"),
    ],
)
def test_what_does_not_fit_the_set_is_refused_naming_both(
    settings: dict[str, Any], message: str, write: Write, tmp_path: Path
) -> None:
    write(range(20))
    before = contents(tmp_path / "out")
    with pytest.raises(SettingError, match=message):
        write(range(20, 40), append=True, **settings)
    assert contents(tmp_path / "out") == before


def test_another_tokenizer_is_refused_by_both_fingerprints(write: Write, tmp_path: Path) -> None:
    old = write(range(20)).info.tokenizer.fingerprint
    other = byte_tokenizer()
    other.add_tokens(["<new>"])
    before = contents(tmp_path / "out")
    with pytest.raises(SettingError, match=f"has fingerprint [0-9a-f]{{32}}, but .* was written with .*{old}"):
        write(range(20, 40), append=True, tokenizer=other)
    assert contents(tmp_path / "out") == before


def test_there_must_be_a_finished_set_to_append_to(write: Write, tmp_path: Path) -> None:
    with pytest.raises(SetError, match=r"no dataset\.json, so there is no finished set here"):
        write(range(20), append=True)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def stopped(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Appends that are stopped at their rename number `at`."""

    def run(at: int, *arguments: Any, **settings: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", Watched(tmp_path / "out", at))
            with pytest.raises(KeyboardInterrupt):
                write(*arguments, append=True, **settings)

    return run


@pytest.mark.parametrize("at", [2, 7, 11])  # in map, in reduce, while shards are put in place
def test_an_unfinished_append_of_other_documents_is_refused_or_dropped_with_overwrite(
    at: int, write: Write, stopped: Callable[..., None], tmp_path: Path
) -> None:
    write(range(40), num_shards=2)
    write(range(40), "clean", num_shards=2)
    stopped(at, range(40, 80))
    with pytest.raises(SetError, match=r"out/\.spool: unfinished work of another run .*--overwrite"):
        write(range(80, 120), append=True)
    write(range(80, 120), append=True, overwrite=True)
    write(range(80, 120), "clean", append=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "clean")


def test_verify_says_that_an_append_was_stopped(write: Write, stopped: Callable[..., None], tmp_path: Path) -> None:
    write(range(40), num_shards=2)
    stopped(12, range(40, 80))
    found = list(faults(open_shards(tmp_path / "out")))
    assert len(found) == 2
    assert all(
        "not in the manifest; a run that adds to this set was stopped: run the same command again" in f for f in found
    )
    write(range(40, 80), append=True)
    assert list(faults(open_shards(tmp_path / "out"))) == []


def test_a_foreign_shard_in_the_set_is_refused_by_name(write: Write, tmp_path: Path) -> None:
    write(range(20))
    (tmp_path / "out" / "train-000077.tar").write_bytes(b"mine")
    with pytest.raises(
        SetError, match=r"already holds train-000077\.tar \(1 files\); remove what its manifest does not list"
    ):
        write(range(20, 40), append=True)
    assert (tmp_path / "out" / "train-000077.tar").read_bytes() == b"mine"


def test_an_append_that_fails_leaves_the_set_as_it_was(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(range(20))
    before = contents(tmp_path / "out")
    with pytest.raises(SettingError, match="num_shards: 9 shards for 5 sequences"):
        write(range(20, 25), append=True, num_shards=9)
    assert contents(tmp_path / "out") == before
    (tmp_path / "20-25.jsonl").write_text('{"text": 5}\n')
    with monkeypatch.context() as patch:
        patch.setattr(ReduceStep, "__call__", None)
        with pytest.raises(Exception, match="found int 5"):
            write(range(20, 25), append=True)
    assert contents(tmp_path / "out") == before


def test_the_lines_of_the_old_manifest_stay_the_first_ones(write: Write, tmp_path: Path) -> None:
    old = write(range(40), num_shards=2)
    write(range(40, 80), append=True)
    assert (tmp_path / "out" / "manifest.jsonl").read_text().startswith(manifest_text(old.shards))
