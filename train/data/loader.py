"""ShardLoader: batches in the canonical order, for Trainer (../trainer) or for a training loop of one's own.

    loader = ShardLoader("out/", batch_size=8, seed=0)          # rank and world size from torchrun
    for epoch in range(3):
        for batch in loader: ...                                # {"input_ids": int64 (8, seq_length), "labels": the same}

Every rank gets the same number of batches; an epoch ends on a whole global batch. `accelerate` must not wrap it: it
would split again.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.train.data import skip_list as skip_lists
from tokentar.train.data.access import Access
from tokentar.train.data.batches import labels_of, position_ids
from tokentar.train.data.dataset import Span
from tokentar.train.data.reading import MixtureReading, Reading, SetReading, State
from tokentar.train.data.shard_patterns import Shards, select_shards
from tokentar.train.data.shard_pool import ShardPool
from tokentar.train.data.sources import Sources, WeightsFrom, read_history
from tokentar.train.data.state import check_position, check_same_order, leave_out_again, left_out, stages_of
from tokentar.train.data.workers import batches_of
from tokentar.train.distributed.world import World
from tokentar.train.order.mixture import MixedOrder
from tokentar.train.order.plan import Plan
from tokentar.train.order.reading_order import Order
from tokentar.train.order.units import Ints

Batch = dict[str, torch.Tensor]


class ShardLoader:
    """Iterates over a set: one epoch at a time (order "epoch"), or without end ("repeat", "resample"), or over several that are mixed.

    shards: a folder or URL, a brace pattern or glob of a set's shards, or a Manifest; for a mixture {name: (shards, weight)}.
    batch_size: sequences a rank gets at once. seed: of the order. rank, world_size: from torchrun's variables if None.
    num_workers: DataLoader processes of this rank. streams: see ../order/streams.py; kept in the state.
    global_batch_size: sequences an optimizer step trains on in all, a multiple of world_size × batch_size (default: just
    that); an epoch ends on a whole one. separate_documents: batches carry position_ids that restart at each document.
    access: the cache for a set in a store, and what happens to damaged shards: an error, or, with "skip", no labels in
    place of their rows. stages: of a mixture, (tokens of the job, weights): until so many, these weights; None: to the
    end. stopping_strategy: "never": a source that ends begins its next epoch; "first_exhausted": the mixture ends.
    skip_list: a file of sequences and documents to leave out, see skip_list.py; their rows have no labels.
    Raises SettingError or SetError for what could not work, before anything is read.
    """

    def __init__(
        self,
        shards: Shards | Mapping[str, tuple[Shards, float]] | Sources,
        *,
        batch_size: int,
        seed: int = 0,
        order: str = "epoch",
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        streams: int | None = None,
        global_batch_size: int | None = None,
        separate_documents: bool = False,
        access: Access | None = None,
        stages: Sequence[tuple[int | None, Mapping[str, float]]] = (),
        stopping_strategy: str = "never",
        skip_list: str | os.PathLike[str] | None = None,
    ) -> None:
        self._data = open_sources(shards, stages, stopping_strategy)
        self.world, self._access = World.detect(rank, world_size, num_workers), access or Access()
        self._streams, self._separate_documents = streams, separate_documents
        self._kind, self._seed = order, seed
        self._skip_list = skip_lists.NOTHING if skip_list is None else skip_lists.read(skip_list, sets_of(self._data))
        self._batch_size, self._global_batch_size = batch_size, global_batch_size
        self._arrange(streams, self._wanted())
        self.epoch = 0
        self._start = 0  # samples of the whole job: where an iteration begins,
        self._returned = 0  # and those returned since
        self._behind = 0  # samples of the epochs before
        self._numbers = np.empty(0, np.int64)
        self.row_numbers = self._numbers  # the same of all rows of the batch, those left out too: (batch_size,) int64
        self.left_out = 0  # rows that this rank has left out

    def _wanted(self) -> list[WeightsFrom]:
        """The stages that were asked for; none of one set."""
        if isinstance(self._data, Manifest):
            return []
        step = self._global_batch_size or self.world.world_size * self._batch_size
        return self._data.weights_from(max(1, step), next(iter(self._data.manifests.values())).info.seq_length)

    def _arrange(self, streams: int | None, stages: list[WeightsFrom]) -> None:
        data, access, world, seed = self._data, self._access, self.world, self._seed
        self.reading: Reading = (
            SetReading.of(data, access, world, kind=self._kind, seed=seed, streams=streams, skip_list=self._skip_list)
            if isinstance(data, Manifest)
            else MixtureReading.of(
                data, access, world, seed=seed, streams=streams, stages=stages, skip_list=self._skip_list
            )
        )
        self.plan = Plan.of(self.order, world, self._batch_size, self._global_batch_size)

    @property
    def order(self) -> Order | MixedOrder:
        """The order of reading."""
        return self.reading.order

    @property
    def pool(self) -> ShardPool:
        """The shards of `manifest`."""
        return next(iter(self.reading.named_pools.values()))

    @property
    def manifest(self) -> Manifest:
        """The set, or the first of those that are mixed; they have the same seq_length and tokenizer."""
        return self.reading.manifests[0]

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on every rank. Raises TypeError for an order without end."""
        if self.endless:
            raise TypeError(
                f"order {self.order.kind!r} has no end, so the loader has no length; set max_steps or max_tokens"
            )
        return self.plan.batches

    @property
    def endless(self) -> bool:
        """Whether the order has no end."""
        return self.order.endless

    @property
    def batch_size(self) -> int:
        """Sequences in a batch."""
        return self.plan.batch_size

    @property
    def position(self) -> int:
        """Samples of the whole job, of this epoch or, in an order without end, since the start, before the next batch."""
        return self._start + self._returned

    @property
    def consumed(self) -> int:
        """Samples of the whole job since its start, over all epochs, before the next batch."""
        return self._behind + self.position

    @property
    def epochs_read(self) -> range:
        """The epochs that the batch last returned is of: with order "repeat" it may lie across a border."""
        if self.order.kind != "repeat":
            return range(self.epoch, self.epoch + 1)
        last = (self.position - 1) // self.order.samples
        return range((self.position - self.plan.samples_per_batch) // self.order.samples, last + 1)

    @property
    def is_of_one_epoch(self) -> bool:
        """Whether no sequence can be twice in the batches last returned to all ranks, as these are of one epoch of each set."""
        if isinstance(self.order, MixedOrder):
            ends = (
                self.order.epochs(sample) for sample in (self.position - self.plan.samples_per_batch, self.position)
            )
            return all(before.start + 1 == after.stop for before, after in zip(*ends, strict=True))
        return len(self.epochs_read) == 1

    @property
    def sample_numbers(self) -> NDArray[np.int64]:
        """Numbers of the sequences in the batch last returned, without rows left out: (at most batch_size,) int64."""
        return self._numbers

    @property
    def sample_keys(self) -> list[str]:
        """Keys, as in the tar, of the sequences in the batch last returned; of a mixture SOURCE/KEY."""
        return self.reading.keys(self._numbers)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be epoch number `epoch`; one that is the next anyway keeps a position loaded from a state."""
        if epoch != self.epoch and not self.endless:
            self._begin(epoch)

    def _begin(self, epoch: int) -> None:
        self._behind = self.consumed
        self.epoch, self._start, self._returned = epoch, 0, 0

    def state_dict(self) -> State:
        """The position of the whole job after the batches returned so far: the same on every rank, small, plain JSON."""
        place = {"epoch": self.epoch, "position": self.position, "consumed": self.consumed}
        mine = self.reading.identity(self.order.streams) | place | self.reading.progress(self.position)
        return mine | left_out(self.reading, self._skip_list)

    def load_state_dict(self, state: State) -> None:
        """Go on from a position, with any world size, workers or batch size; a mixture with other weights and sources too.

        Takes over the state's number of streams where none was asked for. Raises SetError when the state is of other
        data or another order, SettingError when its streams cannot be dealt to this job's ranks × workers.
        """
        stages: list[WeightsFrom] = []
        if not isinstance(self._data, Manifest):
            stages, state = stages_of(self._data, self._wanted(), state)
        check_same_order(state, self.reading.identity(self._streams or state.get("streams")))
        self._arrange(state["streams"], stages)
        leave_out_again(self.reading, self._skip_list, state)
        if not self.endless:
            check_position(state, self.order.samples)
        self.epoch, self._start, self._returned = state["epoch"], state["position"], 0
        self._behind = state["consumed"] - self._start
        if not self.endless and not self.plan.steps_from(self._start):
            self._begin(self.epoch + 1)

    def follow(self, state: State) -> None:
        """Stand where a job stood, with the weights of all stages that the state tells of, and not those asked for here."""
        self.load_state_dict(state)
        if "stages" in state:
            self._arrange(self.order.streams, read_history(state["stages"]))

    def __iter__(self) -> Iterator[Batch]:
        start, self._returned = self._start, 0
        stop = sys.maxsize if self.endless else start + self.plan.usable(self.order.samples - start)
        samples = self.plan.samples_per_batch
        may_miss = any(pool.leaves_out for pool in self.reading.named_pools.values())  # else a missing row is an error
        for numbers, ids in batches_of(self.reading, self.world, Span(self.epoch, start, stop), self.batch_size):
            is_there = numbers >= 0 if may_miss else None
            self.row_numbers = numbers if is_there is None else np.where(is_there, numbers, ~numbers)
            self._numbers = numbers if is_there is None else numbers[is_there]
            self.left_out += len(numbers) - len(self._numbers)
            self._returned += samples
            yield self._as_batch(numbers, ids, is_there)
        self._begin(self.epoch + 1)

    def _as_batch(self, numbers: Ints, ids: Ints, is_there: NDArray[np.bool_] | None) -> Batch:
        eos, tokens = self.reading.info.tokenizer.eos_token_id, torch.from_numpy(ids)
        positions = position_ids(ids, eos) if self._separate_documents else None
        is_padded = self.reading.is_padded(numbers)
        labels = labels_of(ids, eos, is_padded=is_padded, is_there=is_there, positions=positions)
        batch = {"input_ids": tokens, "labels": tokens if labels is ids else torch.from_numpy(labels)}
        if positions is not None:
            batch["position_ids"] = torch.from_numpy(positions)
        return batch


def open_sources(
    shards: Shards | Mapping[str, tuple[Shards, float]] | Sources,
    stages: Sequence[tuple[int | None, Mapping[str, float]]],
    stopping_strategy: str,
) -> Manifest | Sources:
    """One set, or several that are mixed. Raises SettingError or SetError."""
    if isinstance(shards, Sources):
        return shards
    if isinstance(shards, Mapping):
        return Sources.of(shards, stages, stopping_strategy)
    if stages or stopping_strategy != "never":
        raise SettingError("stages, stopping_strategy: of a mixture; give shards as {name: (shards, weight)}")
    return select_shards(shards)


def sets_of(data: Manifest | Sources) -> dict[str, Manifest]:
    """The sets by their names in the mixture; that of one set is ""."""
    return {"": data} if isinstance(data, Manifest) else data.manifests
