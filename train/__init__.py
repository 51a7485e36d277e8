"""Train on sets of token shards: every sequence once per epoch, on any number of processes.

Nothing is imported until it is asked for: torch costs seconds and `transformers.Trainer` many.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokentar.train.data.access import Access
    from tokentar.train.data.loader import ShardLoader
    from tokentar.train.distributed.world import World
    from tokentar.train.trainer.mixin import ShardTrainerMixin
    from tokentar.train.trainer.trainer import ShardTrainer

__all__ = ["Access", "ShardLoader", "ShardTrainer", "ShardTrainerMixin", "World"]
_HOMES = {
    "Access": "tokentar.train.data.access",
    "ShardLoader": "tokentar.train.data.loader",
    "ShardTrainer": "tokentar.train.trainer.trainer",
    "ShardTrainerMixin": "tokentar.train.trainer.mixin",
    "World": "tokentar.train.distributed.world",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
