"""Which sequence each sample is, and which samples a sequence is, by the order alone: no shard is read."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.shard_writer.format.shards import KEY_DIGITS
from tokentar.train.data.reading import MixtureReading, Reading
from tokentar.train.data.streams import drawn_units
from tokentar.train.order.reading_order import DRAWS, Order


@dataclass(frozen=True)
class Sequence:
    """A sequence of a set; source is its name in the mixture, or nothing."""

    source: str
    number: int

    @property
    def key(self) -> str:
        """KEY, or SOURCE/KEY."""
        return f"{self.source}/{self.number:0{KEY_DIGITS}d}".lstrip("/")

    @classmethod
    def parse(cls, key: str) -> "Sequence":
        """The inverse. Raises SettingError for what is no key."""
        source, _, number = key.rpartition("/")
        if not number.isdecimal():
            raise SettingError(
                f"sequence: {key!r}, needed: a key such as 000000000012, of a mixture SOURCE/000000000012"
            )
        return cls(source, int(number))


class Locator:
    """Sequences and samples of what a loader reads."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        mixture = reading.order.mixture if isinstance(reading, MixtureReading) else None
        self._mixture, self._names = mixture, reading.names if isinstance(reading, MixtureReading) else ("",)
        self.manifests = reading.by_name

    def sequences(self, epoch: int, samples: range) -> list[Sequence]:
        """The sequence of each sample of an epoch or, in an order without end, of the job."""
        if isinstance(self._reading, MixtureReading):
            numbers = np.arange(samples.start, samples.stop)
            located = zip(*(part.tolist() for part in self._reading.order.mixture.located(numbers)), strict=True)
            return [self._of_source(source, stream, row) for source, stream, row in located]
        order = self._reading.order
        places = (divmod(sample, order.streams) for sample in samples)
        if order.kind == "epoch":
            return [self._sequence("", order, order.row_at(epoch, stream, row)) for row, stream in places]
        if order.kind == "repeat":
            return [self._repeated("", order, stream, row) for row, stream in places]
        return [self._sequence("", order, _drawn_row(order, stream, row)) for row, stream in places]

    def _of_source(self, source: int, stream: int, row: int) -> Sequence:
        name = self._names[source]
        if (order := self._order(name)) is None:
            raise SettingError(f"source {name!r} was read then and is not named now; add it, with weight 0")
        return self._repeated(name, order, stream, row)

    def _order(self, name: str) -> Order | None:
        if isinstance(self._reading, MixtureReading):
            return dict(zip(self._names, self._reading.order.orders, strict=True)).get(name)
        return self._reading.order if not name else None

    def _repeated(self, name: str, order: Order, stream: int, row: int) -> Sequence:
        epoch, number = divmod(row, order.rounds)
        return self._sequence(name, order, order.row_at(epoch, stream, number))

    def _sequence(self, name: str, order: Order, row: int) -> Sequence:
        index = int(np.searchsorted(order.units.firsts, row, "right")) - 1
        first = int(self.manifests[name].first_sequences[index])
        return Sequence(name, first + row - int(order.units.firsts[index]))

    def shard_of(self, sequence: Sequence) -> tuple[str, int]:
        """The file name of a sequence's shard, and its row there. Raises SettingError for a sequence that no set has."""
        manifest = self._manifest(sequence)
        index = int(np.searchsorted(manifest.first_sequences, sequence.number, "right")) - 1
        row = sequence.number - int(manifest.first_sequences[index])
        if index < 0 or row >= manifest.shards[index].num_sequences:
            raise SettingError(
                f"sequence: {sequence.key}: {manifest.root} has no such sequence among the shards that are read"
            )
        return manifest.shards[index].file_name, row

    def _manifest(self, sequence: Sequence) -> Manifest:
        if sequence.source not in self.manifests:
            names = [name for name in self.manifests if name]
            raise SettingError(f"sequence: {sequence.key}: no such source; there are {names or 'none, leave it out'}")
        return self.manifests[sequence.source]

    def samples(self, sequence: Sequence, epochs: Iterable[int]) -> Iterator[tuple[int, int | None]]:
        """(epoch, sample) at which each of some epochs of its set reads a sequence; None where the epoch leaves it out.

        Raises SettingError for shards that are drawn at random: any draw may read it.
        """
        manifest, order = self._manifest(sequence), self._order(sequence.source)
        assert order is not None
        if order.kind == "resample":
            raise SettingError(
                "order resample draws shards at random: a sequence has no step of its own; trace steps instead"
            )
        index = int(np.searchsorted(manifest.first_sequences, sequence.number, "right")) - 1
        row = sequence.number - int(manifest.first_sequences[index]) + int(order.units.firsts[index])
        for epoch in epochs:
            stream, number = order.place_of(epoch, row)
            yield epoch, self._sample(sequence.source, order, epoch, stream, number)

    def _sample(self, name: str, order: Order, epoch: int, stream: int, number: int) -> int | None:
        if number >= order.rounds:
            return None
        through = number if order.kind == "epoch" else epoch * order.rounds + number
        if self._mixture is not None:
            return self._mixture.sample_of(self._names.index(name), stream, through)
        return through * order.streams + stream


def _drawn_row(order: Order, stream: int, row: int) -> int:
    """The row that a stream which resamples has at a place."""
    draw, inside = divmod(row, order.drawn_rows)
    unit = list(drawn_units(order, stream, draw // DRAWS))[draw % DRAWS]
    return int(order.drawn_unit_rows(stream, draw, unit)[inside])
