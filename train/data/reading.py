"""What a loader reads: one set in its order, or several that are mixed. Both answer the same questions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from tokentar.shard_writer.format.dataset_info import DatasetInfo
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.shard_writer.format.shards import KEY_DIGITS
from tokentar.train.data.access import Access
from tokentar.train.data.dataset import Block, MixedRows, Part, ShardRows, Span
from tokentar.train.data.shard_pool import ShardPool
from tokentar.train.data.skip_list import SkipList
from tokentar.train.data.sources import Sources, WeightsFrom, mixed_order
from tokentar.train.distributed.world import World
from tokentar.train.order import reading_order
from tokentar.train.order.mixture import MixedOrder
from tokentar.train.order.reading_order import Order
from tokentar.train.order.units import Ints

State = dict[str, Any]


@dataclass(frozen=True)
class SetReading:
    """One set."""

    manifest: Manifest
    order: Order
    pool: ShardPool

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        access: Access,
        world: World,
        *,
        kind: str,
        seed: int,
        streams: int | None,
        skip_list: SkipList,
    ) -> "SetReading":
        """Raises SettingError for an order that cannot be dealt to `world`."""
        order = reading_order.build(
            manifest.num_sequences, seed=seed, readers=world.readers, streams=streams, kind=kind
        )
        pool = ShardPool.of(manifest, access, world, order.streams // world.readers)
        return cls(manifest, order, replace(pool, skipped=skip_list.of("")))

    @property
    def info(self) -> DatasetInfo:
        """What the set says of itself."""
        return self.manifest.info

    @property
    def by_name(self) -> dict[str, Manifest]:
        """The sets by their names in a mixture; that of one set is ""."""
        return {"": self.manifest}

    @property
    def manifests(self) -> list[Manifest]:
        """The sets that are read."""
        return [self.manifest]

    @property
    def named_pools(self) -> dict[str, ShardPool]:
        """The shards of each set, by its name in a mixture; that of one set is ""."""
        return {"": self.pool}

    def identity(self, streams: int | None) -> State:
        """What must be the same for a position to be that of this order."""
        return {"fingerprint": self.manifest.fingerprint} | _identity(self.info, self.order, streams)

    def progress(self, position: int) -> State:
        """What a state says beside the position: nothing more."""
        del position
        return {}

    def rows(self, world: World, span: Span, block_rows: int, dtype: np.dtype[Any]) -> IterableDataset[Block]:
        """The rows of a span that a reader takes."""
        return ShardRows(self.pool, self.order, world, span, block_rows, dtype)

    def is_padded(self, numbers: Ints) -> bool | NDArray[np.bool_]:
        """Whether rows may end in fill, by the number of their sequence: (batch,) bool, or one for all."""
        del numbers
        return self.info.is_padded

    def keys(self, numbers: Ints) -> list[str]:
        """Keys, as in the tar, of sequences."""
        return [f"{number:0{KEY_DIGITS}d}" for number in numbers.tolist()]


@dataclass(frozen=True)
class MixtureReading:
    """Several sets; sequences are numbered through, source by source."""

    sources: Sources
    order: MixedOrder
    named_pools: dict[str, ShardPool]

    @classmethod
    def of(
        cls,
        sources: Sources,
        access: Access,
        world: World,
        *,
        seed: int,
        streams: int | None,
        stages: Sequence[WeightsFrom],
        skip_list: SkipList,
    ) -> "MixtureReading":
        """stages: the weights that held and will hold. Raises SettingError for what cannot be dealt to `world`."""
        order = mixed_order(sources, stages, seed=seed, readers=world.readers, streams=streams)
        each, count = order.streams // world.readers, len(sources.manifests)
        pools = {
            name: replace(ShardPool.of(manifest, access, world, each, sharing=count), skipped=skip_list.of(name))
            for name, manifest in sources.manifests.items()
        }
        return cls(sources, order, pools)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all sources, sorted; also of those that are in the history only."""
        return self.order.names

    @property
    def info(self) -> DatasetInfo:
        """What the first set says of itself; the others have the same seq_length, dtype and tokenizer."""
        return self.manifests[0].info

    @property
    def by_name(self) -> dict[str, Manifest]:
        """The sets by their names."""
        return self.sources.manifests

    @property
    def manifests(self) -> list[Manifest]:
        """The sets that are read."""
        return list(self.by_name.values())

    def identity(self, streams: int | None) -> State:
        """What must be the same for a position to be that of this order."""
        return _identity(self.info, self.order, streams)

    def progress(self, position: int) -> State:
        """The weights that held, and of each source its data, its epoch and how many sequences were read."""
        rows, epochs = self.order.mixture.counts(position).sum(axis=1).tolist(), self.order.epochs(position)
        found = {
            name: {
                "fingerprint": manifest.fingerprint,
                "epoch": epochs[self.names.index(name)].start,
                "sequences": rows[self.names.index(name)],
            }
            for name, manifest in self.sources.manifests.items()
        }
        held = [stage for stage in self.stages if stage["start"] < position or not stage["start"]]
        return {"sources": found, "stages": held}

    @property
    def stages(self) -> list[dict[str, Any]]:
        """All stages, as a state has those behind it."""
        return [
            {"start": stage.start, "weights": dict(zip(self.names, stage.weights, strict=True))}
            for stage in self.order.mixture.stages
        ]

    @cached_property
    def _firsts(self) -> Ints:
        """The number in the mixture of each source's sequence 0, and behind them their number in all: (sources + 1,) int64."""
        totals = [manifest.info.totals.sequences for manifest in self.manifests]
        return np.cumsum([0, *totals])

    def rows(self, world: World, span: Span, block_rows: int, dtype: np.dtype[Any]) -> IterableDataset[Block]:
        """The rows of a span that a reader takes."""
        firsts = dict(zip(self.sources.manifests, self._firsts.tolist(), strict=False))
        parts = [
            Part(self.named_pools[name], order, firsts[name]) if order else None
            for name, order in zip(self.names, self.order.orders, strict=True)
        ]
        return MixedRows(parts, self.order.mixture, world, span, block_rows, dtype)

    def source_of(self, numbers: Ints) -> Ints:
        """The place among `manifests` of the source of each sequence: shape as numbers, int64."""
        found: Ints = np.searchsorted(self._firsts, numbers, "right") - 1
        return found

    def is_padded(self, numbers: Ints) -> bool | NDArray[np.bool_]:
        """Whether rows may end in fill, by the number of their sequence: (batch,) bool, or one for all."""
        padded = np.array([manifest.info.is_padded for manifest in self.manifests])
        if padded.all() or not padded.any():
            return bool(padded[0])
        found: NDArray[np.bool_] = padded[self.source_of(np.where(numbers < 0, ~numbers, numbers))]
        return found

    def keys(self, numbers: Ints) -> list[str]:
        """SOURCE/KEY of sequences."""
        names, source = list(self.sources.manifests), self.source_of(numbers)
        keys = zip(source.tolist(), (numbers - self._firsts[source]).tolist(), strict=True)
        return [f"{names[index]}/{number:0{KEY_DIGITS}d}" for index, number in keys]


Reading = SetReading | MixtureReading


def _identity(info: DatasetInfo, order: Order | MixedOrder, streams: int | None) -> State:
    return {
        "tokenizer": info.tokenizer.fingerprint,
        "order": order.kind,
        "seed": order.seed,
        "streams": streams,
    }
