"""tokentar plan: what a training job on a set would do."""

import argparse
from collections.abc import Iterator, Sequence

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.train.data.plan_text import describe
from tokentar.train.data.shard_patterns import select_shards
from tokentar.train.data.sources import STOPPING_STRATEGIES, Sources, mixed_order, parse_sources
from tokentar.train.distributed.world import World
from tokentar.train.order import reading_order
from tokentar.train.order.mixture import MixedOrder
from tokentar.train.order.plan import Plan, global_batch_size, steps_for
from tokentar.train.order.reading_order import Order


def main(prog: str, argv: Sequence[str]) -> int:
    """Print what a job would do."""
    parser = argparse.ArgumentParser(prog, description="What a training job on a set would do.")
    parser.add_argument(
        "--shards",
        required=True,
        nargs="+",
        action="extend",
        help="folder of a set, or its shards by braces or glob; for a mixture PLACE=WEIGHT of each source",
    )
    parser.add_argument("--world_size", type=int, default=1, help="processes of the job (default: 1)")
    parser.add_argument("--num_workers", type=int, default=0, help="DataLoader workers of each (default: 0)")
    parser.add_argument("--per_device_train_batch_size", type=int, default=8, help="sequences (default: 8)")
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1, help="batches a step (default: 1)")
    parser.add_argument("--order", choices=reading_order.KINDS, help="as in training (default: epoch)")
    parser.add_argument(
        "--stopping_strategy", choices=STOPPING_STRATEGIES, default="never", help="of a mixture, as in training"
    )
    parser.add_argument("--streams", type=int, help="as in training (default: 192 or what fits)")
    parser.add_argument("--max_tokens", type=int, help="budget: how many steps and epochs it makes")
    arguments = parser.parse_args(argv)
    for line in _plan_lines(arguments):
        print(line)
    return 0


def _plan_lines(arguments: argparse.Namespace) -> Iterator[str]:
    world = World(0, arguments.world_size, 0, arguments.num_workers)
    batch_size = arguments.per_device_train_batch_size
    accumulated = global_batch_size(world.world_size, batch_size, arguments.gradient_accumulation_steps)
    manifests, order = _order(arguments, world, accumulated)
    plan = Plan.of(order, world, batch_size, accumulated)
    steps, max_tokens = None, arguments.max_tokens
    if max_tokens is not None:
        steps = steps_for(max_tokens, accumulated, next(iter(manifests.values())).info.seq_length)
    yield from describe(manifests, order, plan, world, steps)
    if steps is not None:
        epochs = steps * accumulated / (plan.samples if plan.endless else plan.usable(plan.samples))
        yield f"{max_tokens:,} tokens: {steps:,} steps" + ("" if order.kind == "mixture" else f", {epochs:.2f} epochs")


def _order(
    arguments: argparse.Namespace, world: World, samples_per_step: int
) -> tuple[dict[str, Manifest], Order | MixedOrder]:
    """The sets by source, and the order of the job."""
    seed, streams, shards = 0, arguments.streams, arguments.shards
    if len(shards) == 1 and "=" not in shards[0]:
        manifest = select_shards(shards[0])
        rows = manifest.num_sequences
        kind = arguments.order or "epoch"
        return {"": manifest}, reading_order.build(rows, seed=seed, readers=world.readers, streams=streams, kind=kind)
    if arguments.order is not None:
        raise SettingError(f"order: {arguments.order}, needed: none, as several sets are mixed; leave it out")
    sources = Sources.of(parse_sources(shards), stopping_strategy=arguments.stopping_strategy)
    stages = sources.weights_from(samples_per_step, next(iter(sources.manifests.values())).info.seq_length)
    return sources.manifests, mixed_order(sources, stages, seed=seed, readers=world.readers, streams=streams)
