"""The plan of a job in words: what training logs at its start, and what `tokentar plan` prints."""

from collections.abc import Iterator, Mapping

import numpy as np

from tokentar.shard_writer.format.manifest import Manifest
from tokentar.train.distributed.world import World
from tokentar.train.order.mixture import MixedOrder, Stage
from tokentar.train.order.plan import _BLOCKS_UNDER_WAY, Plan, block_rows
from tokentar.train.order.reading_order import Order

_MOST_NAMED = 5  # numbers of streams that are proposed
MB = 1_000_000


def describe(
    manifests: Mapping[str, Manifest], order: Order | MixedOrder, plan: Plan, world: World, steps: int | None = None
) -> Iterator[str]:
    """The plan in words, a line each. manifests: by source, the one of a set that is read alone by "". steps: of the whole job."""
    if isinstance(order, MixedOrder):
        yield from _describe_mixture(manifests, order, plan, steps)
        for name, own in zip(order.names, order.orders, strict=True):
            if own is not None:
                yield from (f"source {name}: {line}" for line in _needs(manifests[name], own, plan, world))
        return
    (manifest,) = manifests.values()
    yield from _describe_set(manifest, order, plan, world)
    yield from _needs(manifest, order, plan, world)


def _describe_set(manifest: Manifest, order: Order, plan: Plan, world: World) -> Iterator[str]:
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
    if order.kind == "resample":
        yield f"{_equation(plan)}; shards are drawn with replacement, without end"
    else:
        rounds = "epochs follow one another without end; " if plan.endless else ""
        yield f"{_equation(plan)}; {rounds}{plan.steps:,} steps an epoch"
        yield f"left out of each epoch, another choice each time: {plan.left_out:,} of {plan.rows:,} sequences"


def _equation(plan: Plan) -> str:
    return (
        f"global batch {plan.global_batch_size} = {plan.world_size} ranks × {plan.batch_size} × "
        f"{plan.global_batch_size // plan.samples_per_batch} accumulated"
    )


def _describe_mixture(
    manifests: Mapping[str, Manifest], order: MixedOrder, plan: Plan, steps: int | None
) -> Iterator[str]:
    """The sources, then what each stage reads of them."""
    seq_length = next(iter(manifests.values())).info.seq_length
    yield f"mixture of {len(manifests)} sources × {seq_length} tokens; seed {order.seed}, {order.streams} streams"
    for name, own in zip(order.names, order.orders, strict=True):
        if own is not None:
            yield (
                f"source {name}: {manifests[name].root}: {own.rows:,} sequences in {len(manifests[name].shards)} shards; left out of "
                f"each epoch, another choice each time: {own.rows - own.samples:,}"
            )
    yield f"{_equation(plan)}; " + (
        f"ends before the first source would begin again: {plan.steps:,} steps"
        if order.stops
        else "a source that ends begins its next epoch"
    )
    total = plan.steps if order.stops else steps
    stages = order.mixture.stages
    last = None if total is None else total * plan.global_batch_size
    ends = [*(stage.start for stage in stages[1:]), last]
    for stage, end in zip(stages, ends, strict=True):
        if last is None or stage.start < last or not stage.start:
            until = end if last is None or end is None else min(end, last)
            yield _describe_stage(order, stage, until, plan.global_batch_size, seq_length)


def _describe_stage(order: MixedOrder, stage: Stage, end: int | None, batch: int, seq_length: int) -> str:
    first = stage.start // batch + 1
    when = f"from step {first:,} on" if end is None else f"steps {first:,} to {end // batch:,}"
    parts = []
    for index, (name, weight, share) in enumerate(zip(order.names, stage.weights, stage.shares, strict=True)):
        text = f"{name} {share:.2%} (weight {weight:g})"
        own = order.orders[index]
        if end is not None and own is not None and end > stage.start:
            rows = int((order.mixture.counts(end) - order.mixture.counts(stage.start))[index].sum())
            text += f" = {rows:,} sequences, {rows * seq_length:,} tokens, {rows / own.samples:.2f} epochs"
        parts.append(text)
    return f"{when}: {'; '.join(parts)}"


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
        f"each of {world.world_size} ranks × {world.workers} workers reads {order.samples // world.readers:,} sequences an epoch from "
        f"{len(order.units) // world.readers} units (shards, or row ranges as large), {open_shards} shards open at a time; it holds about "
        f"{(permutations + buffers + tables) / MB:,.1f} MB and maps {mapped / MB:,.1f} MB of files, which the system may drop"
    )
