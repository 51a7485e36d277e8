"""tokentar plan: what a training job on a set, or on a mixture of sets, would do."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokentar.shard_writer.config import recipes
from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.train.data.plan_text import describe
from tokentar.train.data.shard_patterns import select_shards
from tokentar.train.data.sources import STOPPING_STRATEGIES, Sources, mixed_order
from tokentar.train.distributed.world import World
from tokentar.train.order import reading_order
from tokentar.train.order.mixture import MixedOrder
from tokentar.train.order.plan import Plan, global_batch_size, steps_for
from tokentar.train.order.reading_order import Order
from tokentar.train.trainer.arguments import DataArguments

_OF_TRAINING = ("shards", "sources", "stages", "stopping_strategy", "order", "streams", "max_tokens")
_DEFAULTS = {"num_workers": 0, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "data_seed": 0}


def main(prog: str, argv: Sequence[str]) -> int:
    """Print what a job would do."""
    for line in _plan_lines(_parse(prog, argv)):
        print(line)
    return 0


def _parse(prog: str, argv: Sequence[str]) -> argparse.Namespace:
    """The flags, and what the recipe says where there is none. Keys of a recipe that do not change the plan are not looked at."""
    parser = argparse.ArgumentParser(prog, description="What a training job would do, before it starts.")
    parser.add_argument(
        "--config", metavar="RECIPE", help="YAML recipe; its section `train:` holds flags, which those typed override"
    )
    parser.add_argument(
        "--shards",
        nargs="+",
        action="extend",
        help="folder of a set, or its shards by braces or glob; for a mixture PLACE=WEIGHT of each source",
    )
    parser.add_argument("--sources", help="a mixture, as in training")
    parser.add_argument("--stages", help="weights of a mixture that change, as in training")
    parser.add_argument("--stopping_strategy", choices=STOPPING_STRATEGIES, help="of a mixture, as in training")
    parser.add_argument("--world_size", type=int, default=1, help="processes of the job (default: 1)")
    parser.add_argument(
        "--num_workers", "--dataloader_num_workers", type=int, help="DataLoader workers of each (default: 0)"
    )
    parser.add_argument("--per_device_train_batch_size", type=int, help="sequences (default: 8)")
    parser.add_argument("--gradient_accumulation_steps", type=int, help="batches a step (default: 1)")
    parser.add_argument("--order", choices=reading_order.KINDS, help="as in training (default: epoch)")
    parser.add_argument("--streams", type=int, help="as in training (default: 192 or what fits)")
    parser.add_argument("--data_seed", type=int, help="of the order (default: 0)")
    parser.add_argument("--max_steps", type=int, help="steps of the job")
    parser.add_argument("--max_tokens", type=int, help="budget: how many steps and epochs it makes")
    typed = parser.parse_args(argv)
    recipe = recipes.read_section(Path(typed.config), "train") if typed.config else {}
    ignored = recipes.overridden({name for name, value in vars(typed).items() if value is not None})
    if "dataloader_num_workers" in recipe:
        recipe["num_workers"] = recipe["dataloader_num_workers"]
    for name in vars(typed).keys() - ignored:
        setattr(typed, name, _as_typed(name, recipe.get(name, _DEFAULTS.get(name))))
    return typed


def _as_typed(name: str, value: Any) -> Any:
    """The value of a recipe's key as the flag would have it."""
    if name == "shards" and isinstance(value, str):
        return [value]
    return json.dumps(value) if isinstance(value, dict) else value


def _plan_lines(arguments: argparse.Namespace) -> Iterator[str]:
    given = {name: getattr(arguments, name) for name in _OF_TRAINING}
    data = DataArguments(**{name: value for name, value in given.items() if value is not None})
    world = World(0, arguments.world_size, 0, arguments.num_workers)
    batch_size = arguments.per_device_train_batch_size
    accumulated = global_batch_size(world.world_size, batch_size, arguments.gradient_accumulation_steps)
    manifests, order = _order(data, arguments.data_seed, world, accumulated)
    plan = Plan.of(order, world, batch_size, accumulated)
    steps = _steps(arguments, accumulated, next(iter(manifests.values())).info.seq_length)
    yield from describe(manifests, order, plan, world, steps)
    if steps is not None:
        epochs = steps * accumulated / (plan.samples if plan.endless else plan.usable(plan.samples))
        asked = f"{arguments.max_tokens:,} tokens: " if arguments.max_tokens is not None else ""
        yield f"{asked}{steps:,} steps" + ("" if order.kind == "mixture" else f", {epochs:.2f} epochs")


def _steps(arguments: argparse.Namespace, samples_per_step: int, seq_length: int) -> int | None:
    """The steps of the whole job, where they are given. Raises SettingError for two ends."""
    max_steps, max_tokens = arguments.max_steps, arguments.max_tokens
    if max_tokens is None:
        return max_steps if max_steps is not None and max_steps > 0 else None
    if max_steps is not None:
        raise SettingError(f"max_tokens: {max_tokens} and max_steps: {max_steps}; give one of them")
    return steps_for(max_tokens, samples_per_step, seq_length)


def _order(
    data: DataArguments, seed: int, world: World, samples_per_step: int
) -> tuple[dict[str, Manifest], Order | MixedOrder]:
    """The sets by source, and the order of the job."""
    if not isinstance(data.data, dict):
        manifest, kind = select_shards(data.data), data.order or "epoch"
        rows = manifest.num_sequences
        order = reading_order.build(rows, seed=seed, readers=world.readers, streams=data.streams, kind=kind)
        return {"": manifest}, order
    sources = Sources.of(data.data, data.stage_weights, data.stopping_strategy)
    stages = sources.weights_from(samples_per_step, next(iter(sources.manifests.values())).info.seq_length)
    return sources.manifests, mixed_order(sources, stages, seed=seed, readers=world.readers, streams=data.streams)
