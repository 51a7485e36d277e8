"""Whether a set is what its manifest says: every byte of every file, and nothing beside them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tqdm import tqdm

from shard_writer import storage
from shard_writer.errors import SetError
from shard_writer.manifest import Manifest
from shard_writer.output import Output

_THREADS = 4  # checksums release the interpreter's lock


@dataclass(frozen=True)
class Fault:
    """What is wrong with a file of a set."""

    file: str
    text: str  # a sentence that names the file

    def __str__(self) -> str:
        return self.text


def faults(manifest: Manifest) -> Iterator[str]:
    """One sentence for each file that is missing, cut, damaged or not of the set."""
    return map(str, find(manifest))


def find(manifest: Manifest) -> Iterator[Fault]:
    """The faults of a set. Reads all of it, at the speed of the disk."""
    with (
        ThreadPoolExecutor(_THREADS) as pool,
        tqdm(total=len(manifest.shards), desc="verify", unit="shard", disable=None) as bar,
    ):
        for found in pool.map(lambda index: _faults(manifest, index), range(len(manifest.shards))):
            bar.update()
            yield from found
    output = Output(manifest.root, None)
    for name in output.strays(manifest):
        yield Fault(name, f"{name}: not in the manifest; " + _way_out(output))


def _way_out(output: Output) -> str:
    if output.is_unfinished:
        return "a run that adds to this set was stopped: run the same command again"
    return "it is of another set, remove it"


def _faults(manifest: Manifest, index: int) -> list[Fault]:
    """The faults of one shard and of its provenance."""
    entry = manifest.shards[index]
    found = [
        Fault(name, text) for name, wanted in entry.files.items() if (text := _fault(manifest, index, name, wanted))
    ]
    if found:
        return found
    try:
        manifest.open(index)
    except SetError as error:
        return [Fault(entry.file_name, str(error))]
    return []


def _fault(manifest: Manifest, index: int, name: str, wanted: tuple[int, str]) -> str | None:
    try:
        size, digest = storage.file_checksum(manifest.root / name)
    except OSError as error:
        return f"{name}: cannot be read: {error.strerror}"
    if size != wanted[0]:
        entry = manifest.shards[index]
        rows = min(size // manifest.info.row_format.stride, entry.num_sequences)
        there = f"; {rows} of {entry.num_sequences} sequences are there" if name == entry.file_name else ""
        return f"{name}: {size} bytes, needed {wanted[0]}{there}"
    if digest != wanted[1]:
        return f"{name}: checksum {digest}, needed {wanted[1]}; the file is damaged or of another set"
    return None
