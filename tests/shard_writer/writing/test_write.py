"""The guarantees of writing: no token lost (G1), same input same bytes (G2), a name means complete (G3)."""

import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import webdataset

from tests.helpers.written import Write, byte_ids, constant_length, contents, cut_small, jsonl, rows_of, texts_of
from tokentar import InputError, Manifest, SetError, SettingError, open_shards
from tokentar.shard_writer.engines.local import SerialExecutor
from tokentar.shard_writer.maintenance.verify import faults
from tokentar.shard_writer.storage.files import locked
from tokentar.shard_writer.writing.output import Output
from tokentar.shard_writer.writing.shard_step import ReduceStep
from tokentar.shard_writer.writing.spool import Part


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files become many tasks of several batches and some of two parts."""
    cut_small(monkeypatch, task_bytes=500, batch_bytes=100, part_bytes=300)


def sevens(count: int, tmp_path: Path) -> str:
    """A corpus whose documents are numbers of seven digits: with EOS, each fills a sequence of 8."""
    return jsonl(tmp_path / "sevens.jsonl", [f"{number:07d}" for number in range(count)])


def numbers(manifest: Manifest) -> list[int]:
    """The numbers in a set of sevens, in order; each must end in EOS."""
    rows = rows_of(manifest)
    assert all(row[7] == 2 for row in rows)
    return [int(bytes(token - 3 for token in row[:7])) for row in rows]


def varied(count: int) -> list[str]:
    """Texts of 1 to 60 characters, some of several bytes."""
    draw = random.Random(count)
    return ["".join(draw.choice("ab é日👍\n") for _ in range(draw.randrange(1, 61))) for _ in range(count)]


def test_paths_are_taken_where_their_names_are(write: Write, t0: Any, tmp_path: Path) -> None:
    t0.save_pretrained(tmp_path / "tokenizer")
    file = Path(sevens(10, tmp_path))
    write(str(file), "names", tokenizer=str(tmp_path / "tokenizer"))
    for given in (file, [file]):
        write(given, "paths", tokenizer=tmp_path / "tokenizer", overwrite=True)
        assert contents(tmp_path / "paths") == contents(tmp_path / "names")


# G1: no token lost


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("engine", ["fastokens", "tokenizers", "transformers"])
def test_a_thousand_documents_of_four_tokens_fill_250_sequences(
    shuffle: bool, engine: str, write: Write, tmp_path: Path
) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["abc"] * 1000)
    totals = write(source, seq_length=16, shuffle=shuffle, tokenizer_engine=engine).info.totals
    assert (totals.documents, totals.tokens, totals.sequences, totals.tail) == (1000, 4000, 250, 0)


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("num_shards", [1, 7, None])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("seq_length", [8, 33])
def test_tokens_in_are_sequences_times_length_plus_tail(
    num_shards: int | None, shuffle: bool, seq_length: int, write: Write, tmp_path: Path
) -> None:
    texts = varied(150)
    manifest = write(jsonl(tmp_path / "a.jsonl", texts), num_shards=num_shards, shuffle=shuffle, seq_length=seq_length)
    tokens = sum(map(len, map(byte_ids, texts)))
    totals = manifest.info.totals
    assert (totals.documents, totals.tokens) == (len(texts), tokens)
    assert (totals.sequences, totals.tail) == divmod(tokens, seq_length)
    assert sum(map(len, rows_of(manifest))) == tokens - totals.tail
    counts = Counter(token for text in texts for token in byte_ids(text))
    counts.subtract(token for row in rows_of(manifest) for token in row)
    assert min(counts.values()) >= 0
    assert counts.total() == totals.tail


@pytest.mark.parametrize("validation", [0, 0.5])
def test_a_corpus_shorter_than_a_sequence_is_an_error_and_leaves_nothing(
    validation: float, write: Write, tmp_path: Path
) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["hello", ""])
    with pytest.raises(InputError, match=r"0 sequences: [06] tokens < 16 .*skipped: {'empty': 1}"):
        write(source, seq_length=16, validation_fraction=validation)
    assert not (tmp_path / "out").exists()


def test_an_empty_corpus_is_an_error_and_leaves_nothing(write: Write, tmp_path: Path) -> None:
    for source in ([], iter([]), jsonl(tmp_path / "a.jsonl", []), jsonl(tmp_path / "b.jsonl", [None, ""])):
        with pytest.raises(InputError):
            write(source)
        assert not (tmp_path / "out").exists()


# Order


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("seq_length", [1, 5, 64, 1000])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_without_shuffle_rows_are_those_of_one_endless_buffer(
    seq_length: int, num_shards: int, write: Write, tmp_path: Path
) -> None:
    texts = varied(100)
    manifest = write(jsonl(tmp_path / "a.jsonl", texts), seq_length=seq_length, num_shards=num_shards, shuffle=False)
    assert rows_of(manifest) == constant_length(map(byte_ids, texts), seq_length)


def test_documents_longer_and_shorter_than_shards_are_laid_end_to_end(write: Write, tmp_path: Path) -> None:
    texts = ["a" * 1000, "b", "c" * 9, "d" * 500, *"efgh"]
    source = jsonl(tmp_path / "a.jsonl", texts)
    for name, settings in {"kept": {"shuffle": False}, "mixed": {"shuffle": True}}.items():
        manifest = write(source, name, num_shards=190, **settings)  # of one sequence each: rows stand as they are cut
        stream = [token for row in rows_of(manifest) for token in row]
        documents_read = "".join(chr(token - 3) if token > 2 else "|" for token in stream).split("|")
        assert all(text in texts for text in documents_read[:-1])
        assert len(stream) == 190 * 8


@pytest.mark.usefixtures("small_tasks")
def test_with_shuffle_every_document_is_there_once_whole_and_in_another_order(write: Write, tmp_path: Path) -> None:
    texts = varied(99)
    texts.append("x" * (-(sum(map(len, map(byte_ids, texts))) + 1) % 32))  # no tail
    source = jsonl(tmp_path / "a.jsonl", texts)
    sequences = sum(map(len, map(byte_ids, texts))) // 32
    manifest = write(source, seq_length=32, num_shards=sequences)  # of one sequence each: rows stand as they are cut
    assert texts_of(manifest) != texts
    assert sorted(texts_of(manifest)) == sorted(texts)


@pytest.mark.usefixtures("small_tasks")
def test_the_order_is_determined_by_the_seed(write: Write, tmp_path: Path) -> None:
    source = sevens(300, tmp_path)
    orders = [numbers(write(source, f"out{i}", seed=seed)) for i, seed in enumerate([0, 0, 1, 2**63, -1])]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 4
    assert all(sorted(order) == list(range(300)) for order in orders)


@pytest.mark.usefixtures("small_tasks")
def test_shuffled_shards_hold_documents_from_everywhere(write: Write, tmp_path: Path) -> None:
    manifest = write(sevens(400, tmp_path), num_shards=4)
    order = numbers(manifest)
    for shard in range(4):
        quarters = Counter(number // 100 for number in order[shard * 100 : shard * 100 + 100])
        assert all(10 <= quarters[quarter] <= 45 for quarter in range(4)), quarters


def test_rows_of_a_shard_are_permuted(write: Write, tmp_path: Path) -> None:
    source = sevens(60, tmp_path)
    cut = numbers(write(source, "cut", num_shards=60))
    one = numbers(write(source, "one", num_shards=1))
    two = numbers(write(source, "two", num_shards=2))
    assert sorted(one) == sorted(cut)
    assert one != cut
    assert set(two[:30]) == set(cut[:30])
    assert two[:30] != cut[:30]


@pytest.mark.parametrize("num_shards", [1, 7, 24, 100])
def test_shards_are_equal_up_to_one_sequence(num_shards: int, write: Write, tmp_path: Path) -> None:
    manifest = write(sevens(100, tmp_path), num_shards=num_shards)
    sizes = manifest.num_sequences.tolist()
    assert (len(sizes), sum(sizes)) == (num_shards, 100)
    assert max(sizes) - min(sizes) <= 1


def test_more_shards_than_sequences_are_refused(write: Write, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="num_shards: 11 shards for 10 sequences of 'train'; ask for 10 at most"):
        write(sevens(10, tmp_path), num_shards=11)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("shuffle", [False, True])
def test_validation_and_training_share_no_document_and_miss_none(shuffle: bool, write: Write, tmp_path: Path) -> None:
    manifest = write(sevens(500, tmp_path), validation_fraction=0.2, shuffle=shuffle)
    training, validation = manifest.split("train"), manifest.split("validation")
    held_out = numbers(validation)
    assert sorted(numbers(training) + held_out) == list(range(500))
    assert 60 <= len(held_out) <= 140
    assert any(number < 100 for number in held_out)
    assert any(number >= 400 for number in held_out)
    totals = manifest.info.splits
    assert (totals["train"].documents, totals["validation"].documents) == (500 - len(held_out), len(held_out))
    assert validation.first_sequences[0] == totals["train"].sequences  # numbers are unique in the whole set
    if not shuffle:
        assert held_out == sorted(held_out)
        assert numbers(training) == sorted(numbers(training))


def test_the_validation_split_depends_on_the_seed_and_not_on_the_shuffle(write: Write, tmp_path: Path) -> None:
    source = sevens(300, tmp_path)
    held_out = [
        sorted(numbers(write(source, f"out{i}", validation_fraction=0.2, **settings).split("validation")))
        for i, settings in enumerate([{}, {"shuffle": False}, {"seed": 1}])
    ]
    assert held_out[0] == held_out[1] != held_out[2]


# G2: same input, same bytes


@pytest.mark.processes
@pytest.mark.usefixtures("small_tasks")
def test_any_number_of_workers_writes_the_same_bytes(write: Write, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", varied(300))
    settings: dict[str, Any] = {"validation_fraction": 0.1, "num_shards": 5, "seq_length": 64}
    write(source, "0", **settings)
    expected = contents(tmp_path / "0")
    assert {"dataset.json", "manifest.jsonl", "train-000004.tar", "validation-000000.tar"} < set(expected)
    for workers in (1, 2, 4):
        write(source, str(workers), **settings, workers=workers)
        assert contents(tmp_path / str(workers)) == expected, workers


@pytest.mark.parametrize("engine", ["tokenizers", "transformers"])
def test_any_engine_writes_the_same_bytes(engine: str, write: Write, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", varied(50))
    write(source, "fast", tokenizer_engine="fastokens")
    write(source, "other", tokenizer_engine=engine)
    assert contents(tmp_path / "fast") == contents(tmp_path / "other")


@pytest.mark.usefixtures("small_tasks")
def test_tasks_that_end_in_any_order_give_the_same_bytes(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = jsonl(tmp_path / "a.jsonl", varied(100))
    write(source, "straight")

    def backwards(pool: SerialExecutor, step: Any, items: Any, ahead: int) -> Any:
        return [step(item) for item in reversed(list(items))]

    monkeypatch.setattr("tokentar.shard_writer.engines.local.run", backwards)
    write(source, "backwards")
    assert contents(tmp_path / "straight") == contents(tmp_path / "backwards")


class Crash:
    """Stops a run at rename number `at`: before it with a full disk, or behind it as Ctrl-C does."""

    def __init__(self, at: int, before: bool) -> None:
        self.left, self.before, self.replace = at, before, os.replace

    def __call__(self, source: Any, target: Any) -> None:
        self.left -= 1
        if self.left == 0 and self.before:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        self.replace(source, target)
        if self.left == 0:
            raise KeyboardInterrupt


def finals(folder: Path) -> dict[str, bytes]:
    """What a folder holds under final names."""
    found = contents(folder).items()
    return {name: content for name, content in found if not name.startswith(".spool") and not name.endswith(".tmp")}


def crashed(monkeypatch: pytest.MonkeyPatch, at: int, before: bool, run: Callable[[], Manifest]) -> bool:
    """Whether a run was stopped at that rename; False when it has fewer of them."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", Crash(at, before))
        try:
            run()
        except (OSError, KeyboardInterrupt):
            return True
    return False


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("before", [True, False], ids=["full disk", "interrupt"])
def test_a_rerun_after_a_crash_anywhere_gives_the_same_bytes(
    before: bool, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = jsonl(tmp_path / "a.jsonl", varied(30))
    settings = {"num_shards": 3}
    write(source, "whole", **settings)
    expected = contents(tmp_path / "whole")
    at = 1
    while crashed(monkeypatch, at, before, partial(write, source, f"out{at}", **settings)):
        final = finals(tmp_path / f"out{at}")
        assert final.items() <= expected.items()  # what bears a final name is whole
        assert "dataset.json" not in final or final == expected
        write(source, f"out{at}", **settings)
        assert contents(tmp_path / f"out{at}") == expected
        at += 1
    assert at > 12  # plan, tasks, 3 shards, publishing, 3 moves, manifest, dataset.json


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("before", [True, False], ids=["full disk", "interrupt"])
def test_a_crash_leaves_the_set_of_before_or_none_under_its_name(
    before: bool, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = sevens(40, tmp_path), jsonl(tmp_path / "a.jsonl", varied(30))
    settings: dict[str, Any] = {"num_shards": 3, "overwrite": True}
    write(new, "whole", **settings)
    write(old, "earlier", num_shards=5)
    expected, earlier = contents(tmp_path / "whole"), contents(tmp_path / "earlier")
    at, kept = 1, 0
    while True:
        shutil.copytree(tmp_path / "earlier", tmp_path / f"out{at}")
        if not crashed(monkeypatch, at, before, partial(write, new, f"out{at}", **settings)):
            break
        final = finals(tmp_path / f"out{at}")
        kept += final == earlier
        assert final in (earlier, expected) or ("dataset.json" not in final and final.items() <= expected.items())
        write(new, f"out{at}", **settings)
        assert contents(tmp_path / f"out{at}") == expected
        at += 1
    assert kept >= 5  # as long as tasks and shards are worked on


def stop(*arguments: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def unfinished(write: Write, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs that are stopped after the last task and before the first shard."""

    def run(*arguments: Any, **settings: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ReduceStep, "__call__", stop)
            with pytest.raises(KeyboardInterrupt):
                write(*arguments, **settings)

    return run


@pytest.mark.usefixtures("small_tasks")
def test_a_rerun_does_torn_parts_again_and_no_others(
    write: Write, unfinished: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = jsonl(tmp_path / "a.jsonl", varied(100))
    write(source, "whole")
    unfinished(source)
    parts = sorted((tmp_path / "out" / ".spool").glob("*.part"))
    torn, flipped = parts[0], parts[-1]
    torn.write_bytes(torn.read_bytes()[:-1])
    flipped.write_bytes(flipped.read_bytes()[:-1] + b"?")
    written: set[int] = set()
    original = Part.write

    def noted(part: Part, *arguments: Any) -> str:
        written.add(part.task)
        return original(part, *arguments)

    monkeypatch.setattr(Part, "write", noted)
    write(source)
    assert written == {int(part.name.split("-")[0]) for part in (torn, flipped)}
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("change", [{"seed": 1}, {"seq_length": 9}, {"shuffle": False}, {"add_bos": True}])
def test_unfinished_work_of_another_run_is_refused_by_name(
    change: dict[str, Any], write: Write, unfinished: Callable[..., None], tmp_path: Path
) -> None:
    source = jsonl(tmp_path / "a.jsonl", varied(30))
    unfinished(source)
    before = contents(tmp_path / "out")
    with pytest.raises(SetError, match=r"out/\.spool: unfinished work of another run .*--overwrite"):
        write(source, **change)
    assert contents(tmp_path / "out") == before
    write(source, overwrite=True, **change)
    write(source, "clean", **change)
    assert contents(tmp_path / "out") == contents(tmp_path / "clean")


def test_work_on_an_input_that_changed_since_is_refused(
    write: Write, unfinished: Callable[..., None], tmp_path: Path
) -> None:
    source = jsonl(tmp_path / "a.jsonl", varied(30))
    unfinished(source)
    with open(source, "a") as file:
        file.write('{"text": "one more"}\n')
    with pytest.raises(SetError, match="unfinished work of another run"):
        write(source)


def test_rows_in_memory_are_never_mixed_with_those_of_an_earlier_run(
    write: Write, unfinished: Callable[..., None], tmp_path: Path
) -> None:
    unfinished([{"text": "old"}] * 50)
    manifest = write([{"text": "newer"}] * 50, shuffle=False, num_shards=1)
    assert rows_of(manifest) == constant_length([byte_ids("newer")] * 50, 8)


# G3: a name means complete


def test_a_finished_set_holds_what_its_manifest_lists_and_nothing_else(write: Write, tmp_path: Path) -> None:
    manifest = write(sevens(50, tmp_path), num_shards=3, validation_fraction=0.3, name="web-2024_en")
    listed = {name for entry in manifest.shards for name in entry.files}
    assert set(contents(tmp_path / "out")) == listed | {"dataset.json", "manifest.jsonl"}
    assert {"web-2024_en-000000.tar", "web-2024_en-000002.tar", "validation-000000.tar"} <= listed
    assert open_shards(tmp_path / "out") == manifest
    assert list(faults(manifest)) == []


@pytest.mark.parametrize("made_before", [False, True])
def test_what_gets_its_final_name_lies_on_the_disk(
    made_before: bool, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, on_disk, named, rename = sevens(50, tmp_path), set(), set(), os.replace
    if made_before:  # by a run that the system did not live to see on the disk
        with monkeypatch.context() as patch:
            patch.setattr(Output, "publish", stop)
            with pytest.raises(KeyboardInterrupt):
                write(source, num_shards=3)

    def noted(old: Path, new: Path) -> None:
        if new.parent == tmp_path / "out":
            assert os.stat(old).st_ino in on_disk
            named.add(new.name)
        rename(old, new)

    monkeypatch.setattr(os, "fsync", lambda descriptor: on_disk.add(os.fstat(descriptor).st_ino))
    monkeypatch.setattr(os, "replace", noted)
    write(source, num_shards=3)
    assert named == set(contents(tmp_path / "out"))
    assert len(named) == 8


def test_a_file_that_does_not_reach_the_disk_ends_the_run(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("train-000001.tar"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output error") as caught:
        write(sevens(50, tmp_path), num_shards=3)
    assert caught.value.filename == str(tmp_path / "out/.spool/shards/train-000001.tar")
    assert finals(tmp_path / "out") == {}


@pytest.mark.parametrize("bad", [b"not json", b'{"content": "a"}', b'{"text": 5}', b'{"text": "\xff"}'])
def test_a_run_that_fails_leaves_no_file_and_no_folder(bad: bytes, write: Write, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "some text that is long enough"}\n' * 5 + bad + b"\n")
    with pytest.raises(InputError, match=r"a\.jsonl:6: "):
        write(str(path))
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_leaves_what_else_is_in_the_folder(write: Write, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(InputError):
        write(jsonl(tmp_path / "a.jsonl", ["x"]))
    assert contents(tmp_path / "out") == {"notes.txt": b"mine"}
    write(sevens(10, tmp_path))
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize(
    ("texts", "settings"),
    [
        (["short"], {"seq_length": 100}),
        ([5], {}),
        (["long enough"], {"text_column": "body"}),
        (["long enough"], {"num_shards": 100}),
        (["long enough"], {"eos_token": "<end>"}),
        (["long enough"], {"seq_length": 0}),
    ],
)
def test_a_run_that_fails_leaves_an_earlier_set_untouched(
    texts: list[Any], settings: dict[str, Any], overwrite: bool, write: Write, tmp_path: Path
) -> None:
    write(sevens(20, tmp_path))
    before = contents(tmp_path / "out")
    with pytest.raises((InputError, SettingError, SetError)):
        write(jsonl(tmp_path / "a.jsonl", texts), overwrite=overwrite, **settings)
    assert contents(tmp_path / "out") == before
    assert list(faults(open_shards(tmp_path / "out"))) == []


def test_a_folder_that_holds_a_set_is_refused_unless_it_is_to_be_replaced(write: Write, tmp_path: Path) -> None:
    write(sevens(10, tmp_path), num_shards=5)
    before = contents(tmp_path / "out")
    with pytest.raises(
        SetError, match=r"out: already holds dataset\.json, manifest\.jsonl, train-000000\.tar.*--overwrite"
    ):
        write(sevens(6, tmp_path), num_shards=3)
    assert contents(tmp_path / "out") == before
    manifest = write(sevens(6, tmp_path), num_shards=3, overwrite=True)
    shards = [f"train-{index:06d}" for index in range(3)]
    files = {f"{shard}{suffix}" for shard in shards for suffix in (".tar", ".docs.parquet")}
    assert set(contents(tmp_path / "out")) == {"dataset.json", "manifest.jsonl"} | files
    assert [entry.shard for entry in manifest.shards] == shards


def test_a_stray_shard_without_a_manifest_is_refused_too(write: Write, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train-000007.tar").write_bytes(b"")
    with pytest.raises(SetError, match=r"already holds train-000007\.tar \(1 files\)"):
        write(sevens(10, tmp_path))
    assert contents(tmp_path / "out") == {"train-000007.tar": b""}


def test_a_second_writer_is_refused_at_once(write: Write, tmp_path: Path) -> None:
    with locked(tmp_path / "out" / ".spool"):
        for overwrite in (False, True):
            with pytest.raises(SetError, match="out: another writer is at work here; wait for it or choose another"):
                write(sevens(10, tmp_path), overwrite=overwrite)
    write(sevens(10, tmp_path))


# Damage and skipping are counted; stock readers agree


def test_rows_without_text_are_counted_in_the_manifest(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"ab"}\n{"text":null}\n{"text":""}\n{"text":5}\n{"text":"a\xffb"}\n{"text":"c"}\n')
    manifest = write(str(path), seq_length=5, bad_documents="skip", shuffle=False)
    assert rows_of(manifest) == [[100, 101, 2, 102, 2]]
    assert manifest.info.skipped == {"empty": 1, "invalid UTF-8": 1, "not text": 1, "without text": 1}
    assert open_shards(tmp_path / "out").info.skipped == manifest.info.skipped


def test_webdataset_sees_every_sequence_of_all_shards_under_its_own_key(write: Write, tmp_path: Path) -> None:
    manifest = write(jsonl(tmp_path / "doc-0.0.jsonl", varied(60)), num_shards=4)
    urls = str(tmp_path / "out" / "train-{000000..000003}.tar")
    samples = list(webdataset.WebDataset(urls, shardshuffle=False).decode())
    assert [sample["input_ids.npy"].tolist() for sample in samples] == rows_of(manifest)
    assert [sample["__key__"] for sample in samples] == [f"{i:012d}" for i in range(manifest.info.totals.sequences)]
