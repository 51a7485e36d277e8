"""The estimate of room and requests before a writing on a cluster."""

import gzip
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tokentar.shard_writer.inputs import planning
from tokentar.shard_writer.writing.disk_space import HeadRoom, estimate, tell


def test_room_is_estimated_from_the_text() -> None:
    """8 TB of text: 2e12 tokens of 4 bytes, 4e9 documents of 32."""
    room = HeadRoom(text=8 * 10**12, tasks=125_000, token_bytes=4, num_shards=6144)
    assert room.set_bytes == 8 * 10**12
    assert room.spool_bytes == 8 * 10**12 + 4 * 10**9 * 32
    assert room.parts == 238_419, "of 32 MiB"
    assert room.ranges == 238_419 * 6144
    assert replace(room, num_shards=None).ranges == 238_419 * 119_232, "of at most 64 MiB, a multiple of 192"
    assert "about 8,128.0 GB of spool and 8,000.0 GB of shards" in room.words()


def test_compressed_input_counts_fourfold_and_too_little_room_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = b'{"text": "ab"}\n' * 1000
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(packed := gzip.compress(lines))
    source = planning.plan_files(
        [str(tmp_path)], text_column="text", input_format="auto", dataset_config=None, dataset_split="train"
    )
    room = estimate(source, 2, None)
    assert room is not None
    assert (room.text, room.tasks) == (15_000 + 4 * len(packed), 2)
    tell(room, tmp_path)
    assert "GB free" not in caplog.text
    tell(replace(room, text=16 * shutil.disk_usage(tmp_path).total), tmp_path)
    assert "GB free, about" in caplog.text
