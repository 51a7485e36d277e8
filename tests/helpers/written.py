"""What the tests of the writer share: small corpora, the ids of a set, and an independent packer to compare with."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokentar import Manifest, write_shards
from tokentar.shard_writer.inputs import documents, planning
from tokentar.shard_writer.writing import tokenize_step

EOS = 2
Write = Callable[..., Manifest]  # write_shards with some of its arguments given
FEW_SHARDS: dict[str, Any] = {"workers": 0, "num_shards": 1, "shuffle": False}


def jsonl(path: Path, texts: Iterable[Any], column: str = "text") -> str:
    """A JSONL file of `texts`; returns its path."""
    path.write_text("".join(json.dumps({column: text}) + "\n" for text in texts))
    return str(path)


def cut_small(patch: pytest.MonkeyPatch, *, task_bytes: int, batch_bytes: int, part_bytes: int) -> None:
    """Let small files become many tasks of several batches, some of them of two parts."""
    patch.setattr(planning, "_LARGEST_TASK", task_bytes)
    patch.setattr(documents, "BATCH_BYTES", batch_bytes)
    patch.setattr(tokenize_step, "PART_BYTES", part_bytes)


def byte_ids(text: str) -> list[int]:
    """What the byte tokenizer gives for a document, EOS included."""
    return [byte + 3 for byte in text.encode()] + [EOS]


def constant_length(documents: Iterable[list[int]], seq_length: int) -> list[list[int]]:
    """ConstantLengthDataset with one endless buffer: documents end to end, cut in `seq_length`, the rest left out."""
    buffer = [token for ids in documents for token in ids]
    return [buffer[i : i + seq_length] for i in range(0, len(buffer) - seq_length + 1, seq_length)]


def rows_of(manifest: Manifest) -> list[list[int]]:
    """All sequences of a set in order."""
    return [row for index in range(len(manifest.shards)) for row in manifest.open(index).rows.tolist()]


def first_ids(tokenizer: Any, source: Any, output: Path, count: int, **settings: Any) -> list[int]:
    """The ids that `source` becomes, when these are `count`: written as one sequence."""
    manifest = write_shards(
        input=source, tokenizer=tokenizer, output=output, seq_length=count, **(FEW_SHARDS | settings)
    )
    totals = manifest.split("train").info.splits["train"]
    assert (totals.sequences, totals.tail) == (1, 0), totals
    return rows_of(manifest)[0]


def texts_of(manifest: Manifest) -> list[str]:
    """The documents of a set that the byte tokenizer wrote, where rows stand in the order of the stream."""
    flat = np.array(rows_of(manifest), np.int64).ravel()
    documents = np.split(flat, np.flatnonzero(flat == EOS) + 1)[:-1]
    return [bytes((ids[:-1] - 3).tolist()).decode() for ids in documents]


def written_texts(tokenizer: Any, source: Any, output: Path, **settings: Any) -> list[str]:
    """The documents that come out when `source` is written with one token a sequence: no tail, so none is cut."""
    manifest = write_shards(input=source, tokenizer=tokenizer, output=output, seq_length=1, **(FEW_SHARDS | settings))
    return texts_of(manifest)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
