"""How a fast engine is held to the ids of a slow one, at a fraction of the fast one's time, less as fewer characters are new (G9).

Compared are the first texts of each batch or, where the first alone is long, a piece from the middle of it; and the
surroundings of each character the first time that it comes: engines differ most in what they know of Unicode. A
difference that needs a rare combination of common characters can slip through; `--tokenizer_engine tokenizers` leaves
nothing to chance.
"""

import sys
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokentar.shard_writer.errors import InputError

# of each batch, at least: tokenized a second time to check the fast engine
SAMPLE_SHARE, SAMPLE_CHARS = 1 / 8192, 1 << 8
_PIECE, _NEAR = 8, 8  # characters of a piece around a new character, and on either side of it
_ASCII = bytes(range(128))
Encoded = tuple[NDArray[np.uint32], NDArray[np.int64]]  # flat ids, document offsets


class Engine(Protocol):
    """Turns texts into ids, nothing added."""

    def encode(self, texts: list[str]) -> Encoded:
        """Ids (tokens,) uint32 and offsets (texts + 1,) int64; text i is ids[offsets[i]:offsets[i+1]]."""


class CheckedEngine:
    """A fast engine that stops the run where it is seen to differ from a reference."""

    def __init__(self, fast: Engine, reference: Engine) -> None:
        self._fast, self._reference = fast, reference
        self._characters = NewCharacters()

    def encode(self, texts: list[str]) -> Encoded:
        """See Engine. Raises InputError when a text that is compared gets other ids than from the reference."""
        ids, offsets = self._fast.encode(texts)
        if not texts:
            return ids, offsets
        count = _num_samples(texts)
        pieces = self._characters.around(texts) + ([] if count else [_middle(texts[0])])
        self._compare(texts[:count], ids[: offsets[count]])
        self._compare(pieces, self._fast.encode(pieces)[0])
        return ids, offsets

    def _compare(self, texts: list[str], ids: NDArray[np.uint32]) -> None:
        if np.array_equal(ids, self._reference.encode(texts)[0]):
            return
        different = (t for t in texts if not np.array_equal(self._fast.encode([t])[0], self._reference.encode([t])[0]))
        raise InputError(
            f"fastokens and tokenizers give different ids for {next(different, texts[0])[:200]!r}; "
            "write with --tokenizer_engine tokenizers, and please report the text"
        )


def _num_samples(texts: list[str]) -> int:
    """How many of the first texts make up the share that is compared; 0 when the first alone is longer."""
    budget = max(SAMPLE_CHARS, int(sum(map(len, texts)) * SAMPLE_SHARE))
    return int(np.searchsorted(np.cumsum([len(text) for text in texts[:1024]]), budget, side="right"))


def _middle(text: str) -> str:
    """SAMPLE_CHARS of a text that has more."""
    start = (len(text) - SAMPLE_CHARS) // 2
    return text[start : start + SAMPLE_CHARS]


class NewCharacters:
    """Notes which characters have come; ASCII is in the probes."""

    def __init__(self) -> None:
        self._seen = np.zeros(sys.maxunicode + 1, np.bool_)
        self._seen[list(_ASCII)] = True

    def around(self, texts: list[str]) -> list[str]:
        """The pieces of `texts` that hold characters no text had before, with their neighbours."""
        foreign = [text for text in texts if not text.isascii()]
        if not len(self._new(foreign)):  # nearly always, so that they need not be looked at one by one
            return []
        return [piece for text in foreign for piece in self._around(text)]

    def _new(self, texts: list[str]) -> NDArray[np.uint32]:
        """The characters of some texts that no text had before: (characters,)."""
        # UTF-8 lies in a text since an engine had it; to strike out ASCII there is far quicker than to look at characters
        codes = _codes(b"".join(text.encode().translate(None, _ASCII) for text in texts).decode())
        new = codes[~self._seen[codes]]
        return np.unique(new) if len(new) else new

    def _around(self, text: str) -> list[str]:
        new = self._new([text])
        if not len(new):
            return []
        self._seen[new] = True
        first = np.array([text.index(chr(code)) for code in new.tolist()])
        pieces = np.unique(first // _PIECE)
        apart = np.flatnonzero(np.diff(pieces) > 1) + 1  # neighbours are compared as one
        starts, stops = pieces[[0, *apart]] * _PIECE - _NEAR, (pieces[[*(apart - 1), -1]] + 1) * _PIECE + _NEAR
        return [text[max(0, start) : stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


def _codes(text: str) -> NDArray[np.uint32]:
    """Code points: (characters,)."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
