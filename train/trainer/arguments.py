"""The flags of training beside those of `transformers.TrainingArguments`; also the keys of a recipe's `train:` section."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.writing.arguments import doc
from tokentar.train.data.access import Access
from tokentar.train.data.sources import parse_sources, read_sources, read_stages

_WEIGHTED = re.compile(r"=\s*[0-9.]+$")


@dataclass(frozen=True, kw_only=True)
class DataArguments:
    """What to train on, and in which order. The seed of the order is TrainingArguments' own --data_seed (default 0)."""

    shards: list[str] | None = doc(
        "Folder or URL of a set, or its shards by braces or glob: out/train-{000000..000063}.tar. Of a mixture, once for each "
        "source, PLACE=WEIGHT or NAME=PLACE=WEIGHT.",
        None,
        action="extend",
    )
    sources: str | None = doc(
        'A mixture, in place of --shards: {"web": {"shards": "out/web", "weight": 0.7}, …}, as YAML in a recipe.', None
    )
    stages: str | None = doc(
        'Weights that change: {"first": {"until": "1e9 tokens", "weights": {"web": 0.9, "code": 0.1}}, …}; the last to the end.',
        None,
    )
    stopping_strategy: Literal["never", "first_exhausted"] = doc(
        "When a source of a mixture ends: begin its next epoch, or end the run.", "never"
    )
    validation_shards: str | None = doc("The same for evaluation (default: the split `validation` of --shards).", None)
    order: Literal["epoch", "repeat", "resample"] | None = doc(
        "epoch: every sequence once, then anew in another order; repeat: the same without end, batches run across the "
        "border; resample: shards drawn with replacement, without end (default: epoch; a mixture has its own).",
        None,
    )
    streams: int | None = doc(
        "Number of streams read side by side; ranks × workers must divide it (default: 192 or what fits).", None
    )
    separate_documents: bool = doc("Positions restart at each document and attention stays inside it.", False)
    cache_dir: str | None = doc(
        "Folder on a local disk for shards of sets that are URLs; jobs share it (default: ~/.cache/tokentar/shards).",
        None,
    )
    cache_bytes: str = doc("Size limit of this folder: 50GB, 64MiB, …", "50GB")
    bad_shards: Literal["error", "skip"] = doc(
        "Damaged shards: stop, or leave out their rows and count them in the log and in checkpoints.", "error"
    )
    skip_list: str | None = doc(
        "File of sequence keys or documents, one a line, to leave out; all other sequences keep their steps.", None
    )
    audit: str | None = doc("Folder in which each rank notes the keys that it was trained on, step by step.", None)
    loss_by_source: bool = doc("Log the loss of each source of a mixture.", False)
    max_tokens: int | None = doc("Tokens to train on, rounded up to a whole step; in place of --max_steps.", None)

    def __post_init__(self) -> None:
        if (self.shards is None) == (self.sources is None):
            raise SettingError("shards: give one of --shards and --sources")
        if isinstance(self.data, dict):
            if self.order is not None:
                raise SettingError(f"order: {self.order}, needed: none, as several sets are mixed; leave it out")
        elif self.stages or self.stopping_strategy != "never" or self.loss_by_source:
            raise SettingError(
                "stages, stopping_strategy, loss_by_source: of a mixture; give several sets, or leave them out"
            )

    @cached_property
    def data(self) -> "str | dict[str, tuple[str, float]]":
        """What ShardLoader takes: a set, or sets and their weights by name."""
        if self.sources is not None:
            return read_sources(self.sources)
        assert self.shards is not None
        if len(self.shards) == 1 and not _WEIGHTED.search(self.shards[0]):
            return self.shards[0]
        return parse_sources(self.shards)

    @cached_property
    def stage_weights(self) -> "list[tuple[int | None, dict[str, float]]]":
        """What ShardLoader takes as stages."""
        return read_stages(self.stages) if self.stages else []

    @property
    def access(self) -> Access:
        """How shards are read."""
        return Access(cache_dir=self.cache_dir, cache_bytes=self.cache_bytes, bad_shards=self.bad_shards)


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """The model to train: a pretrained one, or a new one from a configuration."""

    model_name_or_path: str | None = doc("Pretrained model to continue from.", None)
    model_config: str | None = doc(
        "New model: a JSON or YAML file, or JSON itself, with model_type and what differs from its defaults.", None
    )
    attn_implementation: str | None = doc("Attention of transformers: sdpa, eager, flash_attention_2, …", None)

    def __post_init__(self) -> None:
        if (self.model_name_or_path is None) == (self.model_config is None):
            raise SettingError(
                "model: give one of --model_name_or_path (go on with a model) and --model_config (a new one)"
            )
