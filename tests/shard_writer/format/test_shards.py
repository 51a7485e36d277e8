"""The shard format: what stock tools and our own reader see in it, byte by byte."""

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import webdataset

from tokentar import SetError
from tokentar.shard_writer.format.shards import RowFormat, ShardFile, member_name, shard_image, token_dtype

ROWS, LENGTH, FIRST = 5, 300, 999_997  # the numbers of the sequences gain a digit on the way


@pytest.fixture(params=["<u2", "<u4"])
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, np.ndarray[Any, Any], RowFormat]:
    dtype = np.dtype(request.param)
    rows = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (ROWS, LENGTH), endpoint=True, dtype=dtype)
    row_format = RowFormat(LENGTH, dtype)
    path = tmp_path / "train-000000.tar"
    path.write_bytes(shard_image(rows, FIRST, row_format).tobytes())
    return path, rows, row_format


def keys() -> list[str]:
    return [f"{FIRST + i:012d}" for i in range(ROWS)]


def test_the_image_is_what_tarfile_and_numpy_write(shard: tuple[Path, np.ndarray[Any, Any], RowFormat]) -> None:
    path, rows, _ = shard
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for key, row in zip(keys(), rows, strict=True):
            array = io.BytesIO()
            np.save(array, row)
            info = tarfile.TarInfo(f"{key}.input_ids.npy")
            info.size = array.tell()
            tar.addfile(info, io.BytesIO(array.getvalue()))
    assert path.read_bytes() == buffer.getvalue()


@pytest.mark.parametrize("sequence", [0, 9, 10, 12_345, 999_999_999_999])
def test_the_header_of_a_row_is_that_of_tarfile(sequence: int) -> None:
    row_format = RowFormat(2048, np.dtype("<u2"))
    info = tarfile.TarInfo(f"{sequence:012d}.input_ids.npy")
    info.size = len(row_format.npy_header) + 2 * 2048
    assert row_format.header(sequence) == info.tobuf(tarfile.USTAR_FORMAT)


def test_gnu_tar_lists_every_member_once_with_a_key_free_of_dots(
    shard: tuple[Path, np.ndarray[Any, Any], RowFormat],
) -> None:
    listing = subprocess.run(["tar", "tf", str(shard[0])], capture_output=True, check=True, text=True)
    assert listing.stdout.splitlines() == [f"{key}.input_ids.npy" for key in keys()]
    assert listing.stderr == ""


def test_tarfile_and_numpy_read_the_same_arrays(shard: tuple[Path, np.ndarray[Any, Any], RowFormat]) -> None:
    path, rows, _ = shard
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        arrays = [np.load(io.BytesIO(tar.extractfile(member).read())) for member in members]  # type: ignore[union-attr]
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}
    assert {(a.shape, a.dtype) for a in arrays} == {((LENGTH,), rows.dtype)}
    assert np.array_equal(np.stack(arrays), rows)


def test_webdataset_reads_the_same_arrays_and_keys(shard: tuple[Path, np.ndarray[Any, Any], RowFormat]) -> None:
    path, rows, _ = shard
    samples = list(webdataset.WebDataset(str(path), shardshuffle=False).decode())
    assert [sample["__key__"] for sample in samples] == keys()
    assert np.array_equal(np.stack([sample["input_ids.npy"] for sample in samples]), rows)


def test_datasets_reads_the_same_arrays_and_keys(
    shard: tuple[Path, np.ndarray[Any, Any], RowFormat], tmp_path: Path
) -> None:
    path, rows, _ = shard
    samples = list(
        datasets.load_dataset(
            "webdataset", data_files=[str(path)], split="train", streaming=True, cache_dir=str(tmp_path / "cache")
        )
    )
    assert [sample["__key__"] for sample in samples] == keys()
    assert np.array_equal(np.array([sample["input_ids.npy"] for sample in samples]), rows)


def test_our_reader_maps_the_same_arrays_without_a_copy(shard: tuple[Path, np.ndarray[Any, Any], RowFormat]) -> None:
    path, rows, row_format = shard
    file = ShardFile(path, row_format, ROWS, FIRST)
    assert np.array_equal(file.rows, rows)
    assert file.rows.dtype == rows.dtype
    assert not file.rows.flags.owndata
    assert not file.rows.flags.writeable


def test_row_i_starts_at_i_times_the_stride(shard: tuple[Path, np.ndarray[Any, Any], RowFormat]) -> None:
    path, rows, row_format = shard
    content = path.read_bytes()
    for i in range(ROWS):
        assert content[i * row_format.stride :].startswith(member_name(FIRST + i).encode() + b"\0")
        start = i * row_format.stride + row_format.data_offset
        assert content[start : start + row_format.payload] == rows[i].tobytes()


@pytest.mark.parametrize(("vocab_length", "dtype"), [(259, "<u2"), (1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_ids_take_16_bits_only_where_all_fit(vocab_length: int, dtype: str) -> None:
    assert token_dtype(vocab_length) == np.dtype(dtype)


@pytest.mark.parametrize("length", [1, 2, 24, 191, 192, 193, 448, 2048, 10**6])
def test_every_length_gives_a_file_that_numpy_reads(length: int, tmp_path: Path) -> None:
    row_format = RowFormat(length, np.dtype("<u2"))
    image = shard_image(np.full((2, length), 9, np.uint16), 0, row_format)
    assert image.nbytes == row_format.file_size(2)
    with tarfile.open(fileobj=io.BytesIO(image.tobytes())) as tar:
        arrays = [np.load(io.BytesIO(tar.extractfile(member).read())) for member in tar]  # type: ignore[union-attr]
    assert [array.tolist() for array in arrays] == [[9] * length] * 2


@pytest.mark.parametrize("cut", [0, 100, 700, 2 * 1536, 3 * 1536 + 10])
def test_a_cut_shard_is_refused_by_name_also_at_a_member_boundary(
    cut: int, shard: tuple[Path, np.ndarray[Any, Any], RowFormat]
) -> None:
    path, _, row_format = shard
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(SetError, match=rf"{path.name}: {cut} bytes .* asks for {row_format.file_size(ROWS)}"):
        ShardFile(path, row_format, ROWS, FIRST)


def test_a_shard_of_other_numbers_or_another_length_is_refused(
    shard: tuple[Path, np.ndarray[Any, Any], RowFormat],
) -> None:
    path, _, row_format = shard
    with pytest.raises(SetError, match=r"row 0, byte 0: not the header of 000000000000\.input_ids\.npy"):
        ShardFile(path, row_format, ROWS, 0)
    with pytest.raises(SetError, match=f"{LENGTH - 1} ids"):
        ShardFile(path, RowFormat(LENGTH - 1, row_format.dtype), ROWS, FIRST)
    with pytest.raises(SetError, match="no such shard"):
        ShardFile(path.with_name("train-000001.tar"), row_format, ROWS, FIRST)
