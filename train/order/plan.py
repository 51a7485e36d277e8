"""Steps and batches of a job, and what an epoch leaves out: pure arithmetic."""

from dataclasses import dataclass

from tokentar.shard_writer.errors import SettingError
from tokentar.train.distributed.world import World
from tokentar.train.order.mixture import MixedOrder
from tokentar.train.order.reading_order import Order

_BLOCK_BYTES, _BLOCK_ROWS = 1 << 20, 256
_BLOCKS_UNDER_WAY = 3  # per worker: DataLoader asks for two ahead of the one in use


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The batches of an epoch; of an order without end, the same for as many samples as an epoch has."""

    endless: bool
    rows: int  # sequences in the set
    samples: int  # of whole rounds
    world_size: int
    batch_size: int
    global_batch_size: int

    @classmethod
    def of(cls, order: Order | MixedOrder, world: World, batch_size: int, global_batch_size: int | None) -> "Plan":
        """Raises SettingError when the batches do not fit each other or an epoch holds not one of them."""
        smallest = world.world_size * batch_size
        global_batch_size = smallest if global_batch_size is None else global_batch_size
        if batch_size < 1:
            raise SettingError(f"batch_size: {batch_size}, needed: at least 1")
        if global_batch_size < 1 or global_batch_size % smallest:
            raise SettingError(
                f"global_batch_size: {global_batch_size}, needed: a multiple of world_size × batch_size = "
                f"{world.world_size} × {batch_size} = {smallest}"
            )
        if order.samples < global_batch_size and not order.endless:
            raise SettingError(
                f"an epoch has {order.samples} samples ({order.rows} sequences in {order.streams} streams), less than one "
                f"global batch of {global_batch_size}; use a smaller batch or more data"
            )
        return cls(
            endless=order.endless,
            rows=order.rows,
            samples=order.samples,
            world_size=world.world_size,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
        )

    @property
    def samples_per_batch(self) -> int:
        """Samples that all ranks together take with one batch each."""
        return self.world_size * self.batch_size

    def usable(self, samples: int) -> int:
        """How many of `samples` fill whole global batches."""
        return samples // self.global_batch_size * self.global_batch_size

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch."""
        return self.samples // self.global_batch_size

    def steps_from(self, position: int) -> int:
        """Optimizer steps that what an epoch has from sample number `position` on is enough for."""
        return self.usable(self.samples - position) // self.global_batch_size

    @property
    def batches(self) -> int:
        """Batches a rank gets in an epoch."""
        return self.usable(self.samples) // self.samples_per_batch

    @property
    def left_out(self) -> int:
        """Sequences that an epoch does not read: those of the incomplete round and, where epochs end, global batch."""
        return self.rows - (self.samples if self.endless else self.usable(self.samples))


def global_batch_size(world_size: int, batch_size: int, accumulation_steps: int) -> int:
    """Sequences that an optimizer step trains on. Raises SettingError when it accumulates no batch."""
    if accumulation_steps < 1:
        raise SettingError(f"gradient_accumulation_steps: {accumulation_steps}, needed: at least 1")
    return world_size * batch_size * accumulation_steps


def steps_for(max_tokens: int, global_batch_size: int, seq_length: int, done: int = 0) -> int:
    """The fewest optimizer steps that train on at least so many tokens, `done` of which are behind."""
    if max_tokens < 1:
        raise SettingError(f"max_tokens: {max_tokens}, needed: at least 1")
    return max(0, -(-(max_tokens - done) // (global_batch_size * seq_length)))


def block_rows(row_bytes: int) -> int:
    """Sequences that a DataLoader worker hands over at once."""
    return min(_BLOCK_ROWS, max(1, _BLOCK_BYTES // row_bytes))
