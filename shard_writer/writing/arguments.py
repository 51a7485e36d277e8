"""The flags of `tokentar`, which are also the keys of a recipe's `write:` section and the names `write_shards` takes."""

import os
from dataclasses import dataclass, field
from typing import Any, Literal

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.packing.policies import POLICIES

ENGINES = ("local", "ray")
_LONGEST_NAME = 50  # characters: with number and suffix a file name of at most 255 bytes


def doc(text: str, default: Any = ..., **kwargs: Any) -> Any:
    """A dataclass field with one line of documentation, shown by --help; without a default the flag is required."""
    metadata = {"help": text} | kwargs
    if default is ...:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class WriteArguments:
    """Tokenize documents, pack them into sequences and write them as numbered WebDataset shards."""

    input: list[str] = doc(
        "Files, folders, globs (** goes through folders), URLs of these, signed links to files, or names of data sets."
    )
    tokenizer: str = doc("Name or folder of a transformers tokenizer.")
    output: str = doc("Folder of the new set, or a URL: s3://bucket/set, gs://, az://, hf://datasets/user/name.")
    seq_length: int = doc("Tokens in a sequence.", 2048)
    text_column: str = doc(
        "Column or key that holds the text; data.text: the field `text` of an object or struct `data`.", "text"
    )
    name: str = doc("Name of the training split and of its shards: NAME-000000.tar.", "train")
    num_shards: int | None = doc(
        "Number of shards (default: of at most 64 MiB; it divides 192 or is a multiple of it).", None
    )
    shuffle: bool = doc(
        "Shuffle all documents, and the sequences of a shard; false keeps the order of the input.", True
    )
    seed: int = doc("Seed of the shuffle and of the validation split.", 0)
    workers: int | None = doc("Worker processes (default: one per core; 0: none, all in the main process).", None)
    engine: Literal["local", "ray"] = doc(
        "Where the workers run: processes of this machine, or tasks of a Ray cluster.", "local"
    )
    ray_address: str | None = doc(
        "HOST:PORT of a running Ray cluster, or auto for the one of this machine (default: a new one on this machine).",
        None,
    )
    validation_fraction: float = doc(
        "Share of the documents, drawn by the seed, that goes to a split `validation`.", 0.0
    )
    bad_documents: Literal["error", "skip"] = doc(
        "Broken lines, invalid UTF-8, numbers in place of text: stop, or leave them out and count them by reason.",
        "error",
    )
    input_format: Literal["auto", "jsonl", "parquet", "text", "dataset"] = doc(
        "How to read the input (auto: by suffix; a file of any other suffix is text, one document per file).",
        "auto",
    )
    dataset_config: str | None = doc("Configuration of the data set, where `input` names one.", None)
    dataset_split: str = doc("Split of the data set, where `input` names one.", "train")
    eos_token: str | None = doc("Token that ends each document (default: the tokenizer's EOS).", None)
    add_bos: bool | None = doc("Put BOS before each document (default: where the tokenizer does so itself).", None)
    tokenizer_engine: Literal["fastokens", "tokenizers", "transformers"] | None = doc(
        "Library that tokenizes (default: the fastest that gives the tokenizer's own ids).", None
    )
    packing: Literal["wrap", "best_fit"] = doc(
        "wrap: documents end to end, cut where a sequence is full; best_fit: no document that fits is cut, rows are padded.",
        "wrap",
    )
    provenance: bool = doc(
        "Write a file beside each shard that says where its tokens come from: NAME-000000.docs.parquet.", True
    )
    append: bool = doc("Add the documents to the finished set in the output, as further shards.", False)
    spool_dir: str | None = doc(
        "Folder where a set is built before its upload, if the output is a URL (default: ~/.cache/tokentar/spool).",
        None,
    )
    overwrite: bool = doc("Replace the set, or the unfinished work, that the output holds.", False)

    def __post_init__(self) -> None:
        is_name = self.name.replace("-", "").replace("_", "").isalnum() and len(self.name) <= _LONGEST_NAME
        self._require("output", self.output != "", "a folder or URL")
        self._require("seq_length", self.seq_length >= 1, "at least 1")
        self._require("num_shards", self.num_shards is None or self.num_shards >= 1, "at least 1")
        self._require("workers", self.workers is None or self.workers >= 0, "0 or more")
        self._require("engine", self.engine in ENGINES, " or ".join(ENGINES))
        self._require("ray_address", self.engine == "ray" or self.ray_address is None, "engine: ray")
        self._require("workers", self.engine == "local" or self.workers != 0, "1 or more with engine: ray")
        self._require("validation_fraction", 0 <= self.validation_fraction < 1, "at least 0 and below 1")
        self._require("name", is_name, f"letters, digits, - and _ only, {_LONGEST_NAME} at most")
        self._require("name", self.name != "validation" or not self.validation_fraction, "another than the split's")
        self._require("bad_documents", self.bad_documents in ("error", "skip"), "error or skip")
        self._require("packing", self.packing in POLICIES, " or ".join(POLICIES))

    def _require(self, key: str, condition: bool, needed: str) -> None:
        if not condition:
            raise SettingError(f"{key}: {getattr(self, key)!r}, needed: {needed}")

    @property
    def num_workers(self) -> int:
        """Worker processes to start."""
        return len(os.sched_getaffinity(0)) if self.workers is None else self.workers
