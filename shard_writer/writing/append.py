"""Adding documents to a finished set: what it holds already, whether they fit, and what it says of itself afterwards."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format.dataset_info import DatasetInfo, Totals
from tokentar.shard_writer.format.manifest import Manifest, ShardEntry, first_numbers
from tokentar.shard_writer.tokenizing.spec import TokenizerSpec


@dataclass(frozen=True)
class Base:
    """The set that a writing adds to; None: there is none, and everything is numbered from 0."""

    manifest: Manifest | None

    @property
    def totals(self) -> Totals:
        """What the set holds."""
        return self.manifest.info.totals if self.manifest else Totals.none()

    def shards_of(self, split: str) -> list[ShardEntry]:
        """The shards of a split."""
        return [entry for entry in self.manifest.shards if entry.split == split] if self.manifest else []

    def next_shard(self, split: str) -> int:
        """Number of the next shard of a split."""
        return max((int(entry.shard.rpartition("-")[2]) for entry in self.shards_of(split)), default=-1) + 1

    def num_shards(self, split: str, sequences: int) -> int | None:
        """How many shards of about the size of those that are there; None when there are none."""
        present = self.shards_of(split)
        if not present:
            return None
        rows = sum(entry.num_sequences for entry in present) / len(present)
        return min(sequences, max(1, round(sequences / rows)))

    def check(self, spec: TokenizerSpec, seq_length: int, packing: str) -> None:
        """Raises SettingError when what is written in this way does not fit the set."""
        if self.manifest is None:
            return
        info, root = self.manifest.info, self.manifest.root
        mine = {"seq_length": seq_length, "dtype": spec.dtype.name, "packing": packing} | spec.surroundings
        there = mine | {"seq_length": info.seq_length, "dtype": info.dtype, "packing": "wrap"} | info.settings
        for key, seen in mine.items():
            if seen != (needed := there[key]):
                raise SettingError(
                    f"{key}: {seen}, but {root} holds {needed}; append with the same, or write another set"
                )
        if spec.info.fingerprint != info.tokenizer.fingerprint:
            raise SettingError(
                f"tokenizer {spec.info.name!r} has fingerprint {spec.info.fingerprint}, but {root} was written with "
                f"{info.tokenizer.name!r}, {info.tokenizer.fingerprint}; append with that one, or write another set"
            )

    def extended(self, manifest: Manifest) -> Manifest:
        """The set with the shards of `manifest` behind its own; `manifest` itself when there is no set."""
        if self.manifest is None:
            return manifest
        old, new = self.manifest.info, manifest.info
        shards = (*self.manifest.shards, *manifest.shards)
        info = replace(
            old,
            splits=_sum(old.splits, new.splits),
            skipped=added([old.skipped, new.skipped]),
            shards=len(shards),
            appended=[*old.appended, _as_appended(new)],
        )
        return Manifest(manifest.root, info, shards, first_numbers(shards))


def added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts of skipped rows by reason, added up and sorted."""
    return dict(sorted(sum(map(Counter, counts), Counter[str]()).items()))


def _sum(old: dict[str, Totals], new: dict[str, Totals]) -> dict[str, Totals]:
    return {name: sum((splits[name] for splits in (old, new) if name in splits), Totals.none()) for name in old | new}


def _as_appended(info: DatasetInfo) -> dict[str, object]:
    """What dataset.json says of one appended writing."""
    kept = ("source", "settings", "seed", "splits", "skipped", "shards")
    return {key: value for key, value in asdict(info).items() if key in kept}
