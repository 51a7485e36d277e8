"""What a job will do, worked out before it starts: steps, batches, what is left out. Pure arithmetic on the order."""

from dataclasses import dataclass

from shard_writer.errors import SettingError
from train.order import Order
from train.world import World


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The batches of an epoch."""

    rows: int  # sequences in the set
    samples: int  # of whole rounds
    world_size: int
    batch_size: int
    global_batch_size: int

    @classmethod
    def of(cls, order: Order, world: World, batch_size: int, global_batch_size: int | None) -> "Plan":
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
        if order.samples < global_batch_size:
            raise SettingError(
                f"an epoch has {order.samples} samples ({order.rows} sequences in {order.streams} streams), less than one global batch "
                f"of {global_batch_size}; use a smaller batch or more data"
            )
        return cls(
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

    @property
    def batches(self) -> int:
        """Batches a rank gets in an epoch."""
        return self.usable(self.samples) // self.samples_per_batch

    @property
    def left_out(self) -> int:
        """Sequences that an epoch does not read: the last, incomplete round and global batch."""
        return self.rows - self.usable(self.samples)
