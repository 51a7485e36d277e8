"""Train on sets of token shards: every sequence once per epoch, on any number of processes.

Nothing is imported until it is asked for: torch costs seconds and `transformers.Trainer` many.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train.loader import ShardLoader
    from train.shelf import Access
    from train.trainer import ShardTrainer
    from train.world import World

__all__ = ["Access", "ShardLoader", "ShardTrainer", "World"]
_HOMES = {
    "Access": "train.shelf",
    "ShardLoader": "train.loader",
    "ShardTrainer": "train.trainer",
    "World": "train.world",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
