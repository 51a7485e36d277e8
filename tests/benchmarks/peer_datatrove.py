"""python -m tests.benchmarks.peer_datatrove FOLDER TOKENIZER_JSON OUTPUT WORKERS ENGINE: datatrove's tokenization pipeline.

The pipeline of its example tokenize_c4.py: a reader, DocumentTokenizer (documents shuffled within each worker's file), one
file of the corpus a worker. ENGINE fastokens puts that library under it. Prints the tokens.
"""

import sys
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import fastokens
import numpy as np
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer

from tests.benchmarks.corpus import END_OF_TEXT


class Fastokens:
    """As much of a `tokenizers.Tokenizer` as DocumentTokenizer asks for."""

    def __init__(self, path: str) -> None:
        self._tokenizer = fastokens.Tokenizer.from_file(path)
        self._eos = self._tokenizer.token_to_id(END_OF_TEXT)

    def get_vocab_size(self) -> int:
        return int(self._tokenizer.vocab_size)

    def encode_batch(self, texts: list[str]) -> list[Any]:
        flat, borders = self._tokenizer.encode_batch_flat(texts, split_special_tokens=True)
        ids, ends = np.frombuffer(flat, np.uint32), np.frombuffer(borders, np.uint64)[1:-1].tolist()
        return [SimpleNamespace(ids=[*part.tolist(), self._eos]) for part in np.split(ids, ends)]


class FastDocumentTokenizer(DocumentTokenizer):
    """DocumentTokenizer with fastokens under it."""

    @cached_property
    def tokenizer(self) -> Fastokens:
        return Fastokens(self.tokenizer_name_or_path)


def main(folder: str, tokenizer: str, output: str, workers: str, engine: str) -> None:
    """Do the whole job."""
    step = {"shipped": DocumentTokenizer, "fastokens": FastDocumentTokenizer}[engine]
    pipeline = [
        JsonlReader(folder, text_key="text", glob_pattern="*.jsonl"),
        step(f"{output}/tokens", tokenizer, eos_token=END_OF_TEXT, seed=0),
    ]
    executor = LocalPipelineExecutor(pipeline, tasks=int(workers), logging_dir=f"{output}/logs")
    print(int(executor.run().stats[-1]["tokens"].total))


if __name__ == "__main__":
    from tests.benchmarks import (
        peer_datatrove,  # by its name, so that workers import the classes and do not unpickle them
    )

    peer_datatrove.main(*sys.argv[1:6])
