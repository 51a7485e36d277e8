"""What is said at the end of a run: what it did, with the loss curve as a picture. What it will do is in data/plan_text.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokentar.train.data.reading import MixtureReading
from tokentar.train.data.shard_pool import OpenCosts
from tokentar.train.trainer.train_loader import TrainLoader
from tokentar.train.trainer.trainer import ShardTrainer


def ending(
    trainer: ShardTrainer, by_rank: list[int], overlap: int | None, left_out: dict[str, Any], opened: OpenCosts
) -> Iterator[str]:
    """The result: loss, speed, what each rank read."""
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    if logs:
        yield f"{trainer.state.global_step} steps: loss {logs[0]['loss']:.3f} at step {logs[0]['step']}, {logs[-1]['loss']:.3f} at the end"
    yield "sequences read: " + ", ".join(f"rank {rank}: {count:,}" for rank, count in enumerate(by_rank))
    loader = trainer.train_loader.loader
    if loader.order.kind != "resample":  # which reads what it draws, again and again
        yield f"read twice in an epoch (overlap): {'not tallied, the set is too large' if overlap is None else overlap}"
    if isinstance(loader.reading, MixtureReading):
        for name, state in loader.state_dict()["sources"].items():
            yield f"source {name}: {state['sequences']:,} sequences, in epoch {state['epoch']}"
    elif loader.order.kind != "resample":
        yield f"left out of each epoch: {loader.plan.left_out:,}"
    if left_out["rows"]:
        shards = f" of damaged shards: {', '.join(left_out['shards'])}" if left_out["shards"] else ""
        yield f"left out: {left_out['rows']:,} sequences{shards}"
    if any(pool.cache is not None for pool in loader.reading.named_pools.values()):
        yield (
            f"shards: {opened.shards:,.0f} opened, {opened.fetched:,.0f} of them fetched ({opened.fetched_bytes / 1e6:,.1f} MB); waited "
            f"{opened.waits:,.0f} times for one, {opened.wait_seconds:.1f} s in all"
        )


def tally(feed: TrainLoader) -> tuple[list[int], int | None, dict[str, Any], OpenCosts]:
    """What `ending` needs to know of all ranks. Collective: all ranks call it."""
    return feed.tally.by_rank(), feed.tally.overlap(), feed.left_out(), feed.opened()


def draw_loss(log_history: list[dict[str, Any]], path: Path) -> bool:
    """The loss over steps as a PNG; False where matplotlib is not installed or there is nothing to draw."""
    points = [(entry["step"], entry["loss"]) for entry in log_history if "loss" in entry]
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    if not points:
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*points, strict=True))
    axes.set(xlabel="optimizer step", ylabel="loss (nats per token)", title="Training loss")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    return True
