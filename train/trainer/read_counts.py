"""How often each sequence was read."""

import numpy as np
from numpy.typing import NDArray

from tokentar.train.data.loader import ShardLoader
from tokentar.train.data.reading import MixtureReading
from tokentar.train.distributed.collectives import all_gather

_MOST_TALLIED = 1 << 26  # sequences; larger sets are not tallied, two bytes a sequence and rank are too much
_PART = 1 << 20  # sequences whose counts the ranks exchange at once


class Tally:
    """How often each sequence was read by this rank, and in how many epochs."""

    def __init__(self, loader: ShardLoader) -> None:
        self._loader = loader
        self._start: int | None = None  # position of the first batch
        size = sum(manifest.info.totals.sequences for manifest in loader.reading.manifests)
        self._reads: NDArray[np.uint16] | None = np.zeros(size, np.uint16) if size <= _MOST_TALLIED else None
        self._epochs: set[int] = set()
        self.sequences = 0

    def add(self, epochs: range, numbers: NDArray[np.int64]) -> None:
        """Note one batch."""
        if self._start is None:
            self._start = self._loader.position - self._loader.plan.samples_per_batch
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
        most, parts = self._most_reads(), range(0, len(self._reads), _PART)
        reads = (
            np.sum(all_gather(self._reads[start : start + _PART]), axis=0, dtype=np.int64) - most[start : start + _PART]
            for start in parts
        )
        return sum(int(np.maximum(part, 0).sum()) for part in reads)

    def _most_reads(self) -> NDArray[np.int64]:
        """The epochs that each sequence was read in, or may have been: (sequences,) int64."""
        reading, start = self._loader.reading, self._start or 0
        totals = [manifest.info.totals.sequences for manifest in reading.manifests]
        if not isinstance(reading, MixtureReading):
            return np.full(totals[0], len(self._epochs))
        first, last = (reading.order.epochs(sample) for sample in (start, self._loader.position))
        epochs = [last[i].stop - first[i].start for i, name in enumerate(reading.names) if name in reading.by_name]
        return np.repeat(epochs, totals)
