"""Sequences that are left out by name: a file with a sequence key or a document a line.

    000000000012            a sequence of the one set; of a mixture web/000000000012
    corpus/a.jsonl:17       a document: all sequences that hold tokens of it
    corpus/notes.txt        a text file, which is one document
    # a comment

A sequence that is left out keeps its place: its row has no labels, so every other sequence stays in its step.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format import documents
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.shard_writer.format.shards import KEY_DIGITS
from tokentar.shard_writer.storage import files

_KEY = re.compile(rf"(?:([\w.-]+)/)?(\d{{{KEY_DIGITS}}})")


@dataclass(frozen=True)
class SkipList:
    """The numbers of the sequences to leave out, by the name of their set ("": the one that is read alone)."""

    numbers: dict[str, frozenset[int]]

    @property
    def fingerprint(self) -> str:
        """Changes when any sequence comes or goes: 16 hexadecimal digits."""
        lines = sorted(f"{name}/{number}\n" for name, numbers in self.numbers.items() for number in numbers)
        return files.checksum("".join(lines).encode())

    def __len__(self) -> int:
        return sum(map(len, self.numbers.values()))

    def of(self, name: str) -> frozenset[int]:
        """The sequences of one set."""
        return self.numbers.get(name, frozenset())


NOTHING = SkipList({})


def read(path: str | os.PathLike[str], manifests: Mapping[str, Manifest]) -> SkipList:
    """The list in a file, for sets by name. Raises SettingError with file and line for what none of the sets has."""
    found: dict[str, set[int]] = defaultdict(set)
    named: dict[documents.Document, int] = {}  # and the line that names it
    for number, line in _lines(Path(path)):
        if match := _KEY.fullmatch(line):
            name, key = match[1] or "", int(match[2])
            if name not in manifests or not 0 <= key < manifests[name].info.totals.sequences:
                raise SettingError(
                    f"{path}:{number}: no sequence {line!r}; the sets are "
                    + ", ".join(
                        f"{each or 'one'} of {m.info.totals.sequences:,} sequences" for each, m in manifests.items()
                    )
                )
            found[name].add(key)
        else:
            named[documents.parse_document(line)] = number
    _add_documents(path, named, manifests, found)
    return SkipList({name: frozenset(numbers) for name, numbers in found.items()})


def _add_documents(
    path: str | os.PathLike[str],
    named: Mapping[documents.Document, int],
    manifests: Mapping[str, Manifest],
    found: dict[str, set[int]],
) -> None:
    if not named:
        return
    unseen = dict(named)
    for name, manifest in manifests.items():
        for document, numbers in documents.sequences(manifest, named).items():
            if numbers:
                found[name].update(numbers)
                unseen.pop(document, None)
    for (source, place), number in unseen.items():
        raise SettingError(f"{path}:{number}: no document {source}:{place} in the sets; `tokentar trace` names them")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"skip_list: {path}: cannot be read: {error}; give a text file") from None
    for number, line in enumerate(text.splitlines(), 1):
        if (line := line.strip()) and not line.startswith("#"):
            yield number, line
