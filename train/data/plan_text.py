"""The plan of a job in words: what training logs at its start, and what `tokentar plan` prints."""

from collections.abc import Iterator

import numpy as np

from tokentar.shard_writer.format.manifest import Manifest
from tokentar.train.distributed.world import World
from tokentar.train.order.plan import _BLOCKS_UNDER_WAY, Plan, block_rows
from tokentar.train.order.reading_order import Order

_MOST_NAMED = 5  # numbers of streams that are proposed
MB = 1_000_000


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
        return f"`tokentar reshard` the set, whose shards differ in length, to a multiple of {streams} shards"
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
