"""How often each sequence was read."""

import numpy as np
from numpy.typing import NDArray

from tokentar.train.data.loader import ShardLoader
from tokentar.train.distributed.collectives import all_gather

_MOST_TALLIED = 1 << 26  # sequences; larger sets are not tallied, two bytes a sequence and rank are too much
_PART = 1 << 20  # sequences whose counts the ranks exchange at once


class Tally:
    """How often each sequence was read by this rank, and in how many epochs."""

    def __init__(self, loader: ShardLoader) -> None:
        firsts, counts = loader.manifest.first_sequences, loader.manifest.num_sequences
        size = int((firsts + counts).max())
        self._reads: NDArray[np.uint16] | None = np.zeros(size, np.uint16) if size <= _MOST_TALLIED else None
        self._epochs: set[int] = set()
        self.sequences = 0

    def add(self, epochs: range, numbers: NDArray[np.int64]) -> None:
        """Note one batch."""
        self._epochs.update(epochs)
        self.sequences += len(numbers)
        if self._reads is not None:
            np.add.at(self._reads, numbers, 1)

    def by_rank(self) -> list[int]:
        """Sequences read by each rank. Collective: all ranks call it."""
        return all_gather(self.sequences)

    def overlap(self) -> int | None:
        """Reads of all ranks beyond one a sequence and epoch; None for a set too large to tally. Collective."""
        if self._reads is None:
            return None
        parts = (self._reads[start : start + _PART] for start in range(0, len(self._reads), _PART))
        reads = (np.sum(all_gather(part), axis=0, dtype=np.int64) for part in parts)
        return sum(int(np.maximum(part - len(self._epochs), 0).sum()) for part in reads)
