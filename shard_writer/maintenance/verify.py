"""Whether a set is what its manifest says: every byte of every file, and nothing beside them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tqdm import tqdm

from tokentar.shard_writer.errors import SetError, StoreError
from tokentar.shard_writer.format import checksums
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.shard_writer.storage.urls import Url
from tokentar.shard_writer.writing.output import Output, unlisted

_UNFINISHED = "a run that adds to this set was stopped: run the same command again"
_OF_ANOTHER = "it is of another set, remove it"
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
    if isinstance(manifest.root, Url):
        strays, way_out = unlisted(_names(manifest.root), manifest), _OF_ANOTHER
    else:
        output = Output(manifest.root, None)
        strays, way_out = output.strays(manifest), _UNFINISHED if output.is_unfinished else _OF_ANOTHER
    yield from (Fault(name, f"{name}: not in the manifest; {way_out}") for name in strays)


def _names(root: Url) -> list[str]:
    """The objects of a set; none where a web server lists no folders."""
    try:
        return root.names()
    except StoreError:
        if not root.bucket.root.startswith("http"):
            raise
        return []


def _faults(manifest: Manifest, index: int) -> list[Fault]:
    """The faults of one shard and of its provenance."""
    entry = manifest.shards[index]
    row_format = manifest.info.row_format
    texts = {name: checksums.fault(manifest.root / name, entry, row_format) for name in entry.files}
    found = [Fault(name, f"{name}: {text}") for name, text in texts.items() if text]
    if found or isinstance(
        manifest.root, Url
    ):  # of the latter what was read is gone; its headers are as they were written
        return found
    try:
        manifest.open(index)
    except SetError as error:
        return [Fault(entry.file_name, str(error))]
    return []
