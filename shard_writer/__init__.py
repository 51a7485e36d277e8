"""Write token sequences once, as plain WebDataset tar shards.

write_shards   tokenizes documents, packs them and writes a set of shards
open_shards    reads what a finished set says of itself

Rooms, each of which imports only from those above it:

packing       which tokens go where, and random order: pure arithmetic
storage       files, and objects in stores
config        recipes and flags
format        shards, manifest and provenance: what a set is on disk
inputs        from files and data sets to documents
tokenizing    from documents to token ids
engines       where the steps run: processes of this machine, or a Ray cluster
writing       the steps from documents to a finished set
maintenance   what is done with a finished set: verify, repair, reshard, show
commands      what people type
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokentar.shard_writer.errors import InputError, SetError, SettingError, TokentarError
    from tokentar.shard_writer.format.manifest import Manifest, open_shards
    from tokentar.shard_writer.writing.write import write_shards

__all__ = ["InputError", "Manifest", "SetError", "SettingError", "TokentarError", "open_shards", "write_shards"]
_HOMES = {
    "Manifest": "tokentar.shard_writer.format.manifest",
    "open_shards": "tokentar.shard_writer.format.manifest",
    "write_shards": "tokentar.shard_writer.writing.write",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "tokentar.shard_writer.errors")), name)
