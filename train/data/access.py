"""How shards are read: the cache of sets in object stores, and what happens to damaged shards."""

from dataclasses import dataclass
from pathlib import Path

from tokentar.shard_writer.errors import SettingError
from tokentar.train.data.cache import Cache, default_folder, parse_bytes


@dataclass(frozen=True, kw_only=True)
class Access:
    """How shards are read. The names are those of the flags of `torchrun -m tokentar.train`."""

    cache_dir: str | None = None  # None: below ~/.cache
    cache_bytes: int | str = "50GB"
    bad_shards: str = "error"

    def __post_init__(self) -> None:
        if self.bad_shards not in ("error", "skip"):
            raise SettingError(f"bad_shards: {self.bad_shards!r}, needed: error or skip")

    @property
    def cache(self) -> Cache:
        """The cache for sets in a store. Raises SettingError for a size that is none."""
        folder = Path(self.cache_dir) if self.cache_dir else default_folder()
        return Cache(folder, parse_bytes(str(self.cache_bytes)))
