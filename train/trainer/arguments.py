"""The flags of training beside those of `transformers.TrainingArguments`; also the keys of a recipe's `train:` section."""

from dataclasses import dataclass
from typing import Literal

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.writing.arguments import doc
from tokentar.train.data.access import Access


@dataclass(frozen=True, kw_only=True)
class DataArguments:
    """What to train on, and in which order. The seed of the order is TrainingArguments' own --data_seed (default 0)."""

    shards: str = doc("Folder or URL of a set, or its shards by braces or glob: out/train-{000000..000063}.tar.")
    validation_shards: str | None = doc("The same for evaluation (default: the split `validation` of --shards).", None)
    order: Literal["epoch", "repeat", "resample"] = doc(
        "epoch: every sequence once, then anew in another order; repeat: the same without end, batches run across the "
        "border; resample: shards drawn with replacement, without end.",
        "epoch",
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
    max_tokens: int | None = doc("Tokens to train on, rounded up to a whole step; in place of --max_steps.", None)

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
