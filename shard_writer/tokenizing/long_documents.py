"""Very long documents in pieces, with the ids of the whole: memory and time stay those of a piece.

`tokenizers` needs more than 100 bytes for each character of a document, so one of 200 MB would need 20 GB. A text may be
cut where its tokens do not know of the cut. Whether that is so is tried, not assumed: around each place for a cut, the ids
of what lies before it must be the same whatever lies behind it, those of what lies behind it the same after a long and a
short context, and the piece that was really cut must end in the ids of the trial. Where no such place is found the piece
grows, in the end to the whole document.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

PIECE_CHARS = 1 << 20
_TRIAL_CHARS, _CONTEXT_CHARS = 3840, 384  # multiples of 3 and 128: runs of one character become tokens of 2, 3, … 128
_SHIFTS = 3  # and a space that the tokenizer puts in front may take one of them
_SEARCH_CHARS = 1 << 14  # how far before the end of a piece a place for the cut is looked for
Ids = NDArray[np.uint32]
Encode = Callable[[str], Ids]


def encode_in_pieces(text: str, encode: Encode) -> Iterator[Ids]:
    """The ids of `text`, piece by piece; `encode` gives those of a text. One piece where the text is short."""
    start, size, context = 0, PIECE_CHARS, ""
    while start < len(text):
        for stop in _places(text, start, start + size):
            ids = encode(context + text[start:stop])[len(encode(context)) if context else 0 :]
            found = "" if stop == len(text) else _context(text, stop, ids, encode)
            if found is not None:
                yield ids
                start, size, context = stop, PIECE_CHARS, found
                break
        else:
            size *= 2


def _places(text: str, start: int, stop: int) -> list[int]:
    """Where to try a cut: before a line, before a space, or anywhere, as near to `stop` as may be."""
    if stop >= len(text):
        return [len(text)]
    least = max(start + 1, stop - _SEARCH_CHARS)
    line, space = text.rfind("\n", least, stop) + 1, text.rfind(" ", least, stop)
    return [place for place in (line, space, stop, stop - 1, stop - 2) if place > least]


def _context(text: str, cut: int, ids: Ids, encode: Encode) -> str | None:
    """What must stand before the text behind a cut to give it its ids; None where the cut changes ids.

    ids: those of the piece that ends at the cut.
    """
    right = text[cut : cut + _TRIAL_CHARS]
    for shift in range(_SHIFTS):
        left = text[max(0, cut - _TRIAL_CHARS - shift) : cut]
        context = left[-_CONTEXT_CHARS - shift :]
        before, behind, near = encode(left), _behind(left, right, encode), _behind(context, right, encode)
        count = min(len(ids), max(1, len(before) // 2))
        if behind is None or near is None or not np.array_equal(behind, near):
            continue
        if np.array_equal(ids[-count:], before[-count:]):
            return context
    return None


def _behind(left: str, right: str, encode: Encode) -> Ids | None:
    """The ids of `right` behind `left`; None where these are not simply those behind the ids of `left`."""
    before, both = encode(left), encode(left + right)
    known = len(before)
    if not np.array_equal(both[:known], before) or not np.array_equal(encode(left + right[:-1])[:known], before):
        return None  # a letter more or less far behind the cut must not matter: a run may be tokenized from its end
    return both[known:]
