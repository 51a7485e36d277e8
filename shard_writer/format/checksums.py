"""Whether a file of a set is what the manifest says, by its size and checksum."""

from pathlib import Path

from tokentar.shard_writer.errors import SetError
from tokentar.shard_writer.format.manifest import ShardEntry
from tokentar.shard_writer.format.shards import RowFormat
from tokentar.shard_writer.storage import files
from tokentar.shard_writer.storage.urls import Url


def fault(place: Path | Url, entry: ShardEntry, row_format: RowFormat) -> str | None:
    """What is wrong with a file of `entry`, named after `place`; None when it is as written. Reads all of it."""
    wanted = entry.files[place.name]
    try:
        size, digest = files.file_checksum(place) if isinstance(place, Path) else place.checksum()
    except OSError as error:
        return f"cannot be read: {error.strerror or 'no such object'}"
    if size != wanted[0]:
        rows = min(size // row_format.stride, entry.num_sequences)
        there = f"; {rows} of {entry.num_sequences} sequences are there" if place.name == entry.file_name else ""
        return f"{size} bytes, needed {wanted[0]}{there}"
    if digest != wanted[1]:
        return f"checksum {digest}, needed {wanted[1]}; the file is damaged or of another set"
    return None


def check_shard(path: Path, entry: ShardEntry, row_format: RowFormat) -> None:
    """Raises SetError when a shard on disk is not what the manifest says."""
    if text := fault(path, entry, row_format):
        raise SetError(f"{path}: {text}; `tokentar verify` names all that is damaged, --repair writes it again")
