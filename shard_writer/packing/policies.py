"""How documents become sequences: pure arithmetic on lengths, no files.

wrap      Documents end to end, cut every seq_length tokens; what fills no sequence at the end is the tail.
best_fit  No document that fits a sequence is cut: best-fit decreasing (Johnson 1973) within a window of documents, as in
          Ding et al., "Fewer Truncations Improve Language Modeling" (2024). Longer documents are cut into whole
          sequences and a rest, which is placed like a short document. Rows are filled up with EOS.

In a set packed by best_fit the EOS at the end of a row, but for the first of them, are the fill: a document ends in one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentar.shard_writer.packing.token_ids import TokenIds

POLICIES = ("wrap", "best_fit")
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Tiles:
    """Pieces of documents and where they lie, ordered by row and start; each array (tiles,), int64."""

    row: Ints
    start: Ints  # in the row
    length: Ints
    document: Ints  # index of the document
    token: Ints  # place of the first token among those of all documents (of its part, after `join`), laid end to end

    @classmethod
    def join(cls, parts: Sequence["Tiles"], rows: Sequence[int], documents: Sequence[int]) -> "Tiles":
        """Tiles one after the other, where parts[i] has rows[i] rows and points at documents[i] documents of its own."""
        first_row, first_document = (np.cumsum([0, *counts[:-1]]).tolist() for counts in (rows, documents))
        moved = [
            (part.row + first_row[i], part.start, part.length, part.document + first_document[i], part.token)
            for i, part in enumerate(parts)
        ]
        return cls(*map(np.concatenate, zip(*moved, strict=True)))

    def between(self, first: int, stop: int) -> "Tiles":
        """The tiles of rows `first` … `stop - 1`, now counted from 0."""
        kept = slice(*np.searchsorted(self.row, [first, stop]).tolist())
        return Tiles(self.row[kept] - first, self.start[kept], self.length[kept], self.document[kept], self.token[kept])

    def reordered(self, order: Ints) -> "Tiles":
        """The tiles when row i is what row order[i] was."""
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        row = place[self.row]
        turn = np.argsort(row, kind="stable")
        return Tiles(row[turn], self.start[turn], self.length[turn], self.document[turn], self.token[turn])


def wrap(lengths: Ints, seq_length: int) -> Tiles:
    """Documents of these lengths end to end; rows 0, 1, … of `seq_length` tokens, the last one perhaps shorter."""
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    token = np.union1d(ends - lengths, np.arange(0, total, seq_length))
    row, start = np.divmod(token, seq_length)
    return Tiles(row, start, np.diff(token, append=total), np.searchsorted(ends, token, side="right"), token)


def best_fit(lengths: Ints, seq_length: int) -> Tiles:
    """Documents of these lengths in rows of at most `seq_length`, rows in the order of their first document."""
    document, part, length = _cut(lengths, seq_length)
    bins = fit(length, seq_length)
    first_piece = np.unique(bins, return_index=True)[1]
    row = np.argsort(np.argsort(first_piece))[bins]
    turn = np.argsort(row, kind="stable")
    row, document, part, length = row[turn], document[turn], part[turn], length[turn]
    before = np.cumsum(length) - length
    start = before - before[np.searchsorted(row, row)]
    token = (np.cumsum(lengths) - lengths)[document] + part * seq_length
    return Tiles(row, start, length, document, token)


def _cut(lengths: Ints, seq_length: int) -> tuple[Ints, Ints, Ints]:
    """The pieces of all documents, none longer than a row: document, number in the document, length; each (pieces,) int64."""
    counts = -(-lengths // seq_length)
    document = np.repeat(np.arange(len(lengths)), counts)
    part = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    return document, part, np.minimum(seq_length, lengths[document] - part * seq_length)


def fit(lengths: Ints, capacity: int) -> Ints:
    """The bin of each piece by best-fit decreasing: long pieces first, each into the fullest bin with room, else a new one.

    Bins equally full: the one filled last. Bit s of `rooms` says that some bin has room for exactly s more.
    """
    bins = np.empty(len(lengths), np.int64)
    by_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms = opened = 0
    for piece in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[piece])
        if fitting := rooms >> length:
            room = length + (fitting & -fitting).bit_length() - 1
            target = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, target, opened = capacity, opened, opened + 1
        bins[piece] = target
        if room > length:
            by_room[room - length].append(target)
            rooms |= 1 << (room - length)
    return bins


def num_rows(lengths: Ints, seq_length: int) -> int:
    """How many rows `best_fit` makes of documents of these lengths."""
    pieces = _cut(lengths, seq_length)[2]
    return int(fit(pieces, seq_length).max()) + 1 if len(pieces) else 0


def lay_out(ids: TokenIds, tiles: Tiles, rows: int, seq_length: int, fill: int) -> TokenIds:
    """The rows that `tiles` describe: (rows, seq_length), in the dtype of `ids`, (tokens,); what no tile covers is `fill`."""
    flat: TokenIds = np.full(rows * seq_length, fill, ids.dtype)
    begin = np.cumsum(tiles.length) - tiles.length
    within = np.arange(int(tiles.length.sum())) - np.repeat(begin, tiles.length)
    target = np.repeat(tiles.row * seq_length + tiles.start, tiles.length) + within
    flat[target] = ids[np.repeat(tiles.token, tiles.length) + within]
    return flat.reshape(rows, seq_length)


def padding(ids: NDArray[np.generic], eos_token_id: int) -> NDArray[np.bool_]:
    """Which ids of a set packed by best_fit are fill: shape as `ids`, (rows, seq_length), bool."""
    trailing = np.logical_and.accumulate((ids == eos_token_id)[:, ::-1], axis=1)[:, ::-1]
    fill = np.zeros_like(trailing)
    fill[:, 1:] = trailing[:, :-1]
    return fill
