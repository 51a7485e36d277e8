"""Sequences and documents that are left out by name: the others keep their steps, on every layout and over resumes."""

import logging
import random
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.marked import write_marked
from tests.helpers.tokenizers import byte_tokenizer
from tests.helpers.written import jsonl
from tokentar import Manifest, ShardLoader, write_shards
from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.shard_writer.format import documents
from tokentar.train.data import skip_list
from tokentar.train.data.batches import IGNORED

SETTINGS: dict[str, Any] = {"streams": 12, "global_batch_size": 24}


def listed(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def rows(loaders: list[ShardLoader], batches: int | None = None) -> list[list[int]]:
    """The first label of each row of the job's batches, in the order of samples."""
    read = [[batch["labels"][:, 0].tolist() for batch in islice(loader, batches)] for loader in loaders]
    return [list(chain(*zip(*turn, strict=True))) for turn in zip(*read, strict=True)]


def job(manifest: Manifest, path: Path | None, ranks: int, size: int, **settings: Any) -> list[ShardLoader]:
    return [
        ShardLoader(manifest, batch_size=size, rank=rank, world_size=ranks, skip_list=path, **SETTINGS | settings)
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("count", [1, 100, 479])
@pytest.mark.parametrize(("ranks", "size"), [(1, 24), (2, 12), (4, 6)])
def test_what_is_left_out_has_no_labels_and_all_others_keep_their_places(
    tmp_path: Path, count: int, ranks: int, size: int
) -> None:
    manifest = write_marked(tmp_path / "set", 24, 20)
    skipped = random.Random(count).sample(range(480), count)
    path = listed(tmp_path / "list", ["# spikes", "", *(f"{number:012d}" for number in skipped)])
    whole = rows(job(manifest, None, ranks, size))
    assert rows(job(manifest, path, ranks, size)) == [
        [IGNORED if number in skipped else number for number in batch] for batch in whole
    ]


def test_keys_of_a_batch_are_those_that_it_trains_on(tmp_path: Path) -> None:
    manifest = write_marked(tmp_path / "set", 4, 6)
    (loader,) = job(manifest, listed(tmp_path / "list", ["000000000007"]), 1, 24, streams=4)
    (batch,) = loader
    assert sorted(loader.sample_keys) == [f"{number:012d}" for number in range(24) if number != 7]
    assert loader.left_out == 1
    assert int((batch["labels"][:, 0] == IGNORED).sum()) == 1


def test_a_list_given_at_a_resume_changes_no_other_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manifest = write_marked(tmp_path / "set", 24, 20)
    whole = rows(job(manifest, None, 1, 24))
    (before,) = job(manifest, None, 1, 24)
    assert rows([before], 5) == whole[:5]
    later = whole[7][3]
    (after,) = job(manifest, listed(tmp_path / "list", [f"{later:012d}"]), 1, 24)
    with caplog.at_level(logging.WARNING):
        after.load_state_dict(before.state_dict())
    assert "skip list: was none, is" in caplog.text
    expected = [[IGNORED if number == later else number for number in batch] for batch in whole[5:]]
    assert rows([after]) == expected
    again = job(manifest, tmp_path / "list", 2, 12)
    caplog.clear()
    for loader in again:
        loader.load_state_dict(after.state_dict())
    assert "skip list" not in caplog.text, "the same list"


def test_a_state_tells_the_list_by_what_it_leaves_out(tmp_path: Path) -> None:
    manifest = write_marked(tmp_path / "set", 4, 6)
    names = ["000000000003", "000000000009"]
    states = [
        ShardLoader(manifest, batch_size=4, skip_list=listed(tmp_path / str(i), lines)).state_dict()
        for i, lines in enumerate((names, names[::-1], names[:1]))
    ]
    assert states[0]["skip_list"] == states[1]["skip_list"] != states[2]["skip_list"]
    assert "skip_list" not in ShardLoader(manifest, batch_size=4).state_dict()


@pytest.fixture
def written(tmp_path: Path) -> Manifest:
    """Documents of 1 to 40 bytes, one of them on line 5, in sequences of 16."""
    texts = [chr(97 + number % 26) * (number % 40 + 1) for number in range(200)]
    source = jsonl(tmp_path / "a.jsonl", texts)
    return write_shards(
        input=source, tokenizer=byte_tokenizer(), output=tmp_path / "set", seq_length=16, num_shards=3, workers=0
    )


def holders(manifest: Manifest, line: int) -> set[int]:
    """The sequences that hold tokens of a line, by reading all provenance."""
    whole = documents.pieces(manifest, range(manifest.info.totals.sequences))
    return {number for number, found in whole.items() if line in [piece.place for piece in found]}


@pytest.mark.parametrize("line", [1, 5, 40, 200])
def test_a_document_is_left_out_with_every_sequence_that_holds_a_token_of_it(
    written: Manifest, tmp_path: Path, line: int
) -> None:
    path = listed(tmp_path / "list", [f"{tmp_path / 'a.jsonl'}:{line}"])
    found = skip_list.read(path, {"": written})
    assert found.of("") == holders(written, line) != set()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["000000000480"], r"list:1: no sequence '000000000480'; the sets are one of 480 sequences"),
        (["", "web/000000000001"], "list:2: no sequence 'web/000000000001'"),
    ],
)
def test_a_sequence_that_no_set_has_is_an_error_with_its_line(tmp_path: Path, lines: list[str], message: str) -> None:
    manifest = write_marked(tmp_path / "set", 24, 20)
    with pytest.raises(SettingError, match=message):
        ShardLoader(manifest, batch_size=4, skip_list=listed(tmp_path / "list", lines))


def test_documents_that_cannot_be_found_are_errors(written: Manifest, tmp_path: Path) -> None:
    path = listed(tmp_path / "list", ["000000000001", f"{tmp_path / 'a.jsonl'}:999"])
    with pytest.raises(SettingError, match=r"list:2: no document .*a\.jsonl:999 in the sets"):
        skip_list.read(path, {"": written})
    marked = write_marked(tmp_path / "marked", 2, 4)
    with pytest.raises(SetError, match=r"train-000000\.tar has no provenance"):
        skip_list.read(path, {"": marked})
    with pytest.raises(SettingError, match=r"skip_list: .*nowhere: cannot be read"):
        skip_list.read(tmp_path / "nowhere", {"": marked})


def test_sequences_of_sources_are_named_with_their_source(tmp_path: Path) -> None:
    sets = {name: (write_marked(tmp_path / name, 4, 12), 1.0) for name in ("code", "web")}
    path = listed(tmp_path / "list", ["code/000000000005"])
    plain, chosen = (ShardLoader(sets, batch_size=24, skip_list=each, **SETTINGS) for each in (None, path))
    for batch, other in zip(islice(plain, 4), islice(chosen, 4), strict=True):
        for key, row, seen in zip(plain.sample_keys, batch["labels"].tolist(), other["labels"].tolist(), strict=True):
            assert seen == ([IGNORED] * 8 if key == "code/000000000005" else row)
