"""What a job will do, worked out before it starts: steps, batches, what is left out, what it takes. Pure arithmetic, no torch.

    python -m train.plan --shards out/ --world_size 8 --num_workers 2 --per_device_train_batch_size 4

prints it for a set and a size of job, and refuses what cannot work. Training does the same at its start; its log has
the same lines.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shard_writer.errors import SettingError, TokentarError
from shard_writer.manifest import Manifest
from train import order as orders
from train.order import Order
from train.select import select_shards
from train.world import World

_BLOCK_BYTES, _BLOCK_ROWS = 1 << 20, 256
_BLOCKS_UNDER_WAY = 3  # per worker: DataLoader asks for two ahead of the one in use
_MOST_NAMED = 5  # numbers of streams that are proposed
MB = 1_000_000


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


def describe(manifest: Manifest, order: Order, plan: Plan, world: World) -> Iterator[str]:
    """The plan in words, a line each."""
    shards, ranges, streams = len(manifest.shards), order.units.ranges, order.streams
    yield (
        f"{manifest.root}: {plan.rows:,} sequences × {manifest.info.seq_length} tokens in {shards} shards; "
        f"order {order.kind}, seed {order.seed}, {streams} streams"
    )
    if ranges > shards:
        yield (
            f"{shards} shards are cut into {ranges} row ranges, as {streams} streams ({world.world_size} ranks × {world.workers} "
            "workers) are dealt equally many rows; that is free on a local disk, while of a remote set several ranks fetch the same "
            f"shard; to avoid it, {_way_out(manifest, streams, world.readers)}"
        )
    equation = (
        f"global batch {plan.global_batch_size} = {plan.world_size} ranks × {plan.batch_size} × "
        f"{plan.global_batch_size // plan.samples_per_batch} accumulated"
    )
    if order.kind == "resample":
        yield f"{equation}; shards are drawn with replacement, without end"
    else:
        rounds = "epochs follow one another without end; " if plan.endless else ""
        yield f"{equation}; {rounds}{plan.steps:,} steps an epoch"
        yield f"left out of each epoch, another choice each time: {plan.left_out:,} of {plan.rows:,} sequences"
    yield from _needs(manifest, order, plan, world)


def _way_out(manifest: Manifest, streams: int, readers: int) -> str:
    """How shards could stay whole."""
    shards = len(manifest.shards)
    if np.ptp(manifest.num_sequences) > 1:
        return f"`python -m shard_writer reshard` the set, whose shards differ in length, to a multiple of {streams} shards"
    whole = [str(number) for number in range(readers, shards + 1, readers) if shards % number == 0]
    if not whole:
        return f"write a multiple of {streams} shards; no --streams does it, as {readers} ranks × workers do not divide {shards} shards"
    return f"write a multiple of {streams} shards in one run or set --streams to {' or '.join(whole[-_MOST_NAMED:])}"


def _needs(manifest: Manifest, order: Order, plan: Plan, world: World) -> Iterator[str]:
    """What each rank reads, keeps open and holds in memory."""
    format_, streams = manifest.info.row_format, order.streams // world.readers
    open_shards = min(streams, len(manifest.shards))
    permutations = streams * int(order.units.length.max()) * 2 * 8
    if world.num_workers:
        buffers = _BLOCKS_UNDER_WAY * block_rows(format_.payload) * format_.payload
    else:
        buffers = plan.batch_size * format_.seq_length * 8
    tables = 7 * 8 * (len(order.units) + len(manifest.shards))
    mapped = open_shards * max(entry.bytes for entry in manifest.shards)
    yield (
        f"each of {world.world_size} ranks × {world.workers} workers reads {plan.samples // world.readers:,} sequences an epoch from "
        f"{len(order.units) // world.readers} units (shards, or row ranges as large), {open_shards} shards open at a time; it holds about "
        f"{(permutations + buffers + tables) / MB:,.1f} MB and maps {mapped / MB:,.1f} MB of files, which the system may drop"
    )


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser("python -m train.plan", description="What a training job on a set would do.")
    parser.add_argument("--shards", required=True, help="folder of a set, or its shards by braces or glob")
    parser.add_argument("--world_size", type=int, default=1, help="processes of the job (default: 1)")
    parser.add_argument("--num_workers", type=int, default=0, help="DataLoader workers of each (default: 0)")
    parser.add_argument("--per_device_train_batch_size", type=int, default=8, help="sequences (default: 8)")
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1, help="batches a step (default: 1)")
    parser.add_argument("--order", choices=orders.KINDS, default="epoch", help="as in training (default: epoch)")
    parser.add_argument("--streams", type=int, help="as in training (default: 192 or what fits)")
    parser.add_argument("--max_tokens", type=int, help="budget: how many steps and epochs it makes")
    arguments = parser.parse_args(argv)
    try:
        for line in _plan_lines(arguments):
            print(line)
    except TokentarError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _plan_lines(arguments: argparse.Namespace) -> Iterator[str]:
    world = World(0, arguments.world_size, 0, arguments.num_workers)
    manifest = select_shards(arguments.shards)
    order = orders.build(
        manifest.num_sequences, seed=0, readers=world.readers, streams=arguments.streams, kind=arguments.order
    )
    batch_size = arguments.per_device_train_batch_size
    accumulated = global_batch_size(world.world_size, batch_size, arguments.gradient_accumulation_steps)
    plan = Plan.of(order, world, batch_size, accumulated)
    yield from describe(manifest, order, plan, world)
    if arguments.max_tokens is not None:
        steps = steps_for(arguments.max_tokens, accumulated, manifest.info.seq_length)
        epochs = steps * accumulated / (plan.samples if plan.endless else plan.usable(plan.samples))
        yield f"{arguments.max_tokens:,} tokens: {steps:,} steps, {epochs:.2f} epochs"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
