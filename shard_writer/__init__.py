"""Write token sequences once, as plain WebDataset tar shards.

write_shards   tokenizes documents, packs them and writes a set of shards
open_shards    reads what a finished set says of itself
"""

from shard_writer.errors import InputError, SetError, SettingError, TokentarError
from shard_writer.manifest import Manifest, open_shards
from shard_writer.write import write_shards

__all__ = ["InputError", "Manifest", "SetError", "SettingError", "TokentarError", "open_shards", "write_shards"]
