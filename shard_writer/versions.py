"""Which code this machine runs, so that the machines of one job can be compared."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tokentar.shard_writer.storage.files import checksum

_PACKAGES = ("shard_writer", "train")
_LIBRARIES = ("numpy", "pyarrow", "orjson", "tokenizers", "fastokens", "transformers", "torch", "webdataset")


@cache
def versions() -> dict[str, str]:
    """Versions of the libraries that decide bytes, order or losses, and a checksum of our own sources."""
    return {name: _version(name) for name in _LIBRARIES} | {"tokentar": checksum(b"".join(_sources()))}


def difference(first: dict[str, str], second: dict[str, str]) -> str | None:
    """What differs in words, first against second: "numpy 2.4.6 against 2.3.0"; None when nothing does."""
    unlike = [name for name in first if first[name] != second.get(name)]
    return ", ".join(f"{name} {first[name]} against {second.get(name)}" for name in unlike) or None


def _version(library: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # which takes longer than the rest of this module

    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


def _sources() -> Iterator[bytes]:
    root = Path(__file__).parent.parent
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if path.parent.name == "tokentar":  # which lies elsewhere when installed
                continue
            yield str(path.relative_to(root)).encode() + b"\0" + path.read_bytes()
