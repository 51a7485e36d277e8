"""tokentar plan: what a training job on a set would do."""

import argparse
from collections.abc import Iterator, Sequence

from tokentar.train.data.plan_text import describe
from tokentar.train.data.shard_patterns import select_shards
from tokentar.train.distributed.world import World
from tokentar.train.order import reading_order
from tokentar.train.order.plan import Plan, global_batch_size, steps_for


def main(prog: str, argv: Sequence[str]) -> int:
    """Print what a job would do."""
    parser = argparse.ArgumentParser(prog, description="What a training job on a set would do.")
    parser.add_argument("--shards", required=True, help="folder of a set, or its shards by braces or glob")
    parser.add_argument("--world_size", type=int, default=1, help="processes of the job (default: 1)")
    parser.add_argument("--num_workers", type=int, default=0, help="DataLoader workers of each (default: 0)")
    parser.add_argument("--per_device_train_batch_size", type=int, default=8, help="sequences (default: 8)")
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1, help="batches a step (default: 1)")
    parser.add_argument("--order", choices=reading_order.KINDS, default="epoch", help="as in training (default: epoch)")
    parser.add_argument("--streams", type=int, help="as in training (default: 192 or what fits)")
    parser.add_argument("--max_tokens", type=int, help="budget: how many steps and epochs it makes")
    arguments = parser.parse_args(argv)
    for line in _plan_lines(arguments):
        print(line)
    return 0


def _plan_lines(arguments: argparse.Namespace) -> Iterator[str]:
    world = World(0, arguments.world_size, 0, arguments.num_workers)
    manifest = select_shards(arguments.shards)
    order = reading_order.build(
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
