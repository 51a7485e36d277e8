"""Whether a set is what its manifest says: every byte of every shard, and nothing beside them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tqdm import tqdm

from shard_writer import storage
from shard_writer.errors import SetError
from shard_writer.manifest import Manifest, ShardEntry
from shard_writer.output import Output

_THREADS = 4  # checksums release the interpreter's lock


def faults(manifest: Manifest) -> Iterator[str]:
    """One sentence for each shard that is missing, cut, damaged or not of the set. Reads all of it, at the speed of the disk."""
    with (
        ThreadPoolExecutor(_THREADS) as pool,
        tqdm(total=len(manifest.shards), desc="verify", unit="shard", disable=None) as bar,
    ):
        for fault in pool.map(lambda index: _fault(manifest, index), range(len(manifest.shards))):
            bar.update()
            if fault:
                yield fault
    listed = {entry.file_name for entry in manifest.shards}
    for name in Output(manifest.root, None, overwrite=False).present():
        if name.endswith(".tar") and name not in listed:
            yield f"{name}: not in the manifest; it is of another set, remove it"


def _fault(manifest: Manifest, index: int) -> str | None:
    entry: ShardEntry = manifest.shards[index]
    try:
        size, digest = storage.file_checksum(manifest.path(entry))
    except OSError as error:
        return f"{entry.file_name}: cannot be read: {error.strerror}"
    if size != entry.bytes:
        rows = min(size // manifest.info.row_format.stride, entry.num_sequences)
        return f"{entry.file_name}: {size} bytes, needed {entry.bytes}; {rows} of {entry.num_sequences} sequences are there"
    if digest != entry.xxh3:
        return f"{entry.file_name}: checksum {digest}, needed {entry.xxh3}; the file is damaged or of another set"
    try:
        manifest.open(index)
    except SetError as error:
        return str(error)
    return None
