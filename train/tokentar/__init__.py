"""tokentar: write token sequences once as plain WebDataset tar shards, and train Hugging Face models on them.

write_shards   tokenizes documents, packs them and writes a set of shards
open_shards    reads what a finished set says of itself
ShardLoader    batches of a set for a training loop of your own
ShardTrainer   transformers.Trainer on sets of shards (ShardTrainerMixin: any other Trainer class on them)

This folder is the package `tokentar` itself; `tokentar.shard_writer` and `tokentar.train` are the folders of these names
at the root of the repository. A name is imported when it is first used: torch costs seconds.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokentar.shard_writer import (
        InputError,
        Manifest,
        SetError,
        SettingError,
        TokentarError,
        open_shards,
        write_shards,
    )
    from tokentar.train import Access, ShardLoader, ShardTrainer, ShardTrainerMixin, World

__all__ = [
    "Access",
    "InputError",
    "Manifest",
    "SetError",
    "SettingError",
    "ShardLoader",
    "ShardTrainer",
    "ShardTrainerMixin",
    "TokentarError",
    "World",
    "open_shards",
    "write_shards",
]
_OF_TRAIN = ("Access", "ShardLoader", "ShardTrainer", "ShardTrainerMixin", "World")


def __getattr__(name: str) -> Any:
    import importlib

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = "tokentar.train" if name in _OF_TRAIN else "tokentar.shard_writer"
    return getattr(importlib.import_module(package), name)
