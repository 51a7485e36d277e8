"""Readers: each document once, exactly as it was written, and every row that is none counted or named by its place."""

import gzip
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tokentar import InputError
from tokentar.shard_writer.inputs import documents
from tokentar.shard_writer.inputs.documents import Bad
from tokentar.shard_writer.inputs.json_lines import CompressedJsonLines, JsonLines
from tokentar.shard_writer.inputs.parquet import ParquetGroups
from tokentar.shard_writer.inputs.text_files import TextFiles

BOM = b"\xef\xbb\xbf"


def lines_in(path: Path, cuts: list[int], policy: str = "error") -> list[str]:
    """What readers of the byte ranges between `cuts` find, one after the other."""
    bounds = [0, *cuts, path.stat().st_size]
    texts = []
    for start, stop in itertools.pairwise(bounds):
        for batch in JsonLines(str(path), start, stop).read("text", Bad(policy)):
            texts += batch
    return texts


def json_lines(content: bytes, path: Path, policy: str = "error") -> tuple[list[str], dict[str, int]]:
    """Documents and skipped rows of a file of that content."""
    path.write_bytes(content)
    bad = Bad(policy)
    texts = [text for batch in JsonLines(str(path), 0, len(content)).read("text", bad) for text in batch]
    return texts, dict(bad.skipped)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False], ids=["last newline", "no last newline"])
@pytest.mark.parametrize("start", [b"", BOM], ids=["", "BOM"])
@pytest.mark.parametrize("batch_bytes", [1, 7, 1 << 24])
def test_every_line_is_read_exactly_once_however_the_file_is_cut(
    newline: bytes, last: bool, start: bytes, batch_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "BATCH_BYTES", batch_bytes)
    texts = ["a", "bé", "", "c" * 30, "d\n"]
    path = tmp_path / "a.jsonl"
    body = newline.join(json.dumps({"text": text}).encode() for text in texts) + (newline if last else b"")
    path.write_bytes(start + body)
    wanted = [text for text in texts if text]
    size = path.stat().st_size
    for cut in range(1, size):
        assert lines_in(path, [cut]) == wanted, cut
    assert lines_in(path, list(range(1, size))) == wanted


def test_a_line_longer_than_a_range_belongs_to_the_range_it_starts_in(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"' + b"x" * 1000 + b'"}\n{"text":"y"}\n')
    parts = [lines_in_range(path, start, start + 100) for start in range(0, 1100, 100)]
    assert [len(part) for part in parts] == [1, *[0] * 9, 1]
    assert parts[-1] == ["y"]


def lines_in_range(path: Path, start: int, stop: int) -> list[str]:
    return [text for batch in JsonLines(str(path), start, stop).read("text", Bad("error")) for text in batch]


def test_blank_lines_and_other_keys_are_passed_over(tmp_path: Path) -> None:
    content = b'\n{"id": 1, "text": "a"}\n \t\r\n{"text": "b", "meta": {"text": "no"}}\n\n'
    assert json_lines(content, tmp_path / "a.jsonl") == (["a", "b"], {})


def test_null_and_empty_texts_are_counted_and_neighbours_kept(tmp_path: Path) -> None:
    content = b'{"text":"ab"}\n{"text":null}\n{"text":""}\n{"text":"c"}\n'
    assert json_lines(content, tmp_path / "a.jsonl") == (["ab", "c"], {"without text": 1, "empty": 1})


def test_a_whole_surrogate_pair_is_one_character(tmp_path: Path) -> None:
    assert json_lines(rb'{"text":"\ud83d\udc4d"}', tmp_path / "a.jsonl") == (["\U0001f44d"], {})


def test_numbers_that_only_lenient_json_knows_do_not_cost_the_document(tmp_path: Path) -> None:
    content = b'{"text":"a","score":NaN}\n{"text":"b","big":123456789012345678901234567890}\n'
    assert json_lines(content, tmp_path / "a.jsonl") == (["a", "b"], {})


BAD_LINES = [
    (b'{"text":5}', "not text", "text wanted, found int 5"),
    (b'{"text":NaN}', "not text", "text wanted, found float nan"),
    (b'{"text":["a"]}', "not text", r"text wanted, found list \['a'\]"),
    (rb'{"text":"a\ud800b"}', "lone surrogate", "half of a surrogate pair"),
    (b'{"text":"a\xffb"}', "invalid UTF-8", "invalid UTF-8 at byte 10 of the line"),
    (b'{"text":"a"', "invalid JSON", "not JSON"),
    (b"[" * 100_000, "invalid JSON", "not JSON"),
    (b'"text"', "not an object", "a JSON object wanted, found b'\"text\"'"),
    (b'[{"text":"a"}]', "not an object", "a JSON object wanted"),
    (b'{"content":"a"}', "no column text", r"no column 'text'; there are \['content'\]; .* --text_column"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "reason", "message"), BAD_LINES)
def test_a_line_that_is_no_document_stops_the_run_with_file_and_line(
    line: bytes, reason: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    with pytest.raises(InputError, match=rf"a\.jsonl:3: {message}"):
        json_lines(b'{"text":"a"}\n{"text":"b"}\n' + line + b'\n{"text":"c"}\n', path)


@pytest.mark.parametrize(("line", "reason", "message"), BAD_LINES)
def test_a_line_that_is_no_document_is_counted_by_reason_and_its_neighbours_kept(
    line: bytes, reason: str, message: str, tmp_path: Path
) -> None:
    content = b'{"text":"a"}\n' + line + b'\n{"text":"c"}\n'
    assert json_lines(content, tmp_path / "a.jsonl", "skip") == (["a", "c"], {reason: 1})


def test_the_line_number_counts_from_the_start_of_the_file_in_every_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "BATCH_BYTES", 20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"a"}\n' * 50 + b"no\n" + b'{"text":"a"}\n' * 50)
    for cut in (1, 300, 13 * 50):
        with pytest.raises(InputError, match=r"a\.jsonl:51: not JSON"):
            lines_in(path, [cut])


def test_the_first_skipped_rows_of_each_reason_are_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    json_lines(b'{"text":5}\n' * 10 + b"no\n", tmp_path / "a.jsonl", "skip")
    places = [message.split(": ")[1] for message in caplog.messages]
    assert places == [f"{tmp_path / 'a.jsonl'}:{line}" for line in (1, 2, 3, 11)]


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    content = BOM + b'{"text":"a"}\r\n{"text":"b"}\r\n'
    assert json_lines(content, tmp_path / "a.jsonl") == (["a", "b"], {})
    path = tmp_path / "a.txt"
    path.write_bytes(BOM + b"one\r\ntwo\r\n")
    assert text_file(path) == ["one\r\ntwo\r\n"]


def text_file(path: Path) -> list[str]:
    return [text for batch in TextFiles((str(path),), 1).read("text", Bad("error")) for text in batch]


def compressed(content: bytes, suffix: str) -> bytes:
    return gzip.compress(content) if suffix == ".gz" else zstandard.compress(content)


def read_compressed(path: Path, policy: str = "error") -> list[str]:
    return [text for batch in CompressedJsonLines(str(path)).read("text", Bad(policy)) for text in batch]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("batch_bytes", [1, 5, 1 << 24])
def test_all_frames_of_a_compressed_file_are_read(
    suffix: str, batch_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "BATCH_BYTES", batch_bytes)
    path = tmp_path / f"a.jsonl{suffix}"
    frames = [b'{"text":"a"}\n', b'{"te', b'xt":"b"}\n{"text":"c"}']  # a line may go on in the next frame
    path.write_bytes(b"".join(compressed(frame, suffix) for frame in frames))
    assert read_compressed(path) == ["a", "b", "c"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_bad_line_of_a_compressed_file_is_named_by_its_number(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "BATCH_BYTES", 20)
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compressed(b'{"text":"a"}\n' * 50 + b"no\n" + b'{"text":"a"}\n' * 50, suffix))
    with pytest.raises(InputError, match=rf"a\.jsonl{suffix}:51: not JSON"):
        read_compressed(path)
    assert read_compressed(path, "skip") == ["a"] * 100


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_cut_or_damaged_compressed_file_is_an_error_that_names_it(suffix: str, tmp_path: Path) -> None:
    content = b"".join(b'{"text":"%d"}\n' % number for number in range(5000))
    whole = compressed(content, suffix)
    path = tmp_path / f"a.jsonl{suffix}"
    for damaged in (whole[: len(whole) // 2], whole[:-3], b"not compressed at all"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=rf"a\.jsonl{suffix}: .*the file is cut or damaged"):
            read_compressed(path)


def test_a_frame_with_a_window_of_a_gigabyte_is_read_or_refused_by_name(tmp_path: Path) -> None:
    settings = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True, compression_level=1)
    path = tmp_path / "a.jsonl.zst"
    out = io.BytesIO()
    with zstandard.ZstdCompressor(compression_params=settings).stream_writer(out, closefd=False) as writer:
        writer.write(b'{"text":"a"}\n')  # of unknown size, so the frame asks for the whole window
    path.write_bytes(out.getvalue())
    with pytest.raises(InputError, match=r"a\.jsonl\.zst: .*pack it with a smaller window"):
        read_compressed(path)


def test_a_text_file_is_one_document_kept_byte_for_byte(tmp_path: Path) -> None:
    text = "one\r\ntwo\rthree\n\n\tfour \x0c\x85\u2028 é\x00"
    for suffix, content in {"": text.encode(), ".gz": gzip.compress(text.encode())}.items():
        path = tmp_path / f"a.txt{suffix}"
        path.write_bytes(content)
        assert text_file(path) == [text]


def test_a_text_file_that_is_not_utf8_is_named_with_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"one\ntwo\ncaf\xe9\n")
    with pytest.raises(InputError, match=r"latin\.txt:3: invalid UTF-8 at byte 11"):
        text_file(path)


def parquet(path: Path, values: list[Any], kind: pa.DataType, row_group_size: int) -> Path:
    pq.write_table(pa.table({"text": pa.array(values, kind)}), path, row_group_size=row_group_size)
    return path


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_every_row_group_is_read_once(kind: pa.DataType, tmp_path: Path) -> None:
    values = [None if i % 7 == 3 else "" if i % 7 == 5 else f"é{i}" for i in range(100)]
    path = parquet(tmp_path / "a.parquet", values, kind, 9)
    bad = Bad("error")
    readers = [ParquetGroups(str(path), start, min(start + 5, 12), 1) for start in range(0, 12, 5)]
    texts = [text for reader in readers for batch in reader.read("text", bad) for text in batch]
    assert texts == [value for value in values if value]
    assert bad.skipped == {"without text": 14, "empty": 14}


def test_a_parquet_text_that_is_not_utf8_is_named_by_group_and_row(tmp_path: Path) -> None:
    raw = pa.array([b"a", b"b", b"c\xff", None, b"d"], pa.binary())
    column = pa.StringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2], raw.buffers()[0])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": column}), path, row_group_size=3)
    reader = ParquetGroups(str(path), 0, 2, 1)
    with pytest.raises(InputError, match=r"a\.parquet, row group 0, row 2: "):
        list(reader.read("text", Bad("error")))
    bad = Bad("skip")
    assert [text for batch in reader.read("text", bad) for text in batch] == ["a", "b", "d"]
    assert sum(bad.skipped.values()) == 2
