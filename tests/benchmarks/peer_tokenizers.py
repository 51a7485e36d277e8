"""The peer of `write`: the same job by plain `tokenizers`, one process a core, as one would write it by hand.

python -m tests.benchmarks.peer_tokenizers JSONL TOKENIZER_JSON OUTPUT PROCESSES     prints the number of tokens

Input order, no shuffle, no checksums, no manifest, nothing durable; what fills no sequence at the end of a
range is dropped.
"""

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context

import numpy as np
from tokenizers import Tokenizer

from tests.benchmarks.corpus import END_OF_TEXT

SEQ_LENGTH = 2048
_BATCH = 1000  # documents, as `datasets.map` has it
_RANGES = 8  # a process, so that none waits long for the last one
_tokenizer: Tokenizer  # of this process
_eos: int


def load(path: str) -> None:
    """Load the tokenizer, once a process."""
    global _tokenizer, _eos
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _tokenizer = Tokenizer.from_file(path)
    _tokenizer.encode_special_tokens = True  # text that looks like a special token is text, as in ours
    _eos = _tokenizer.get_vocab()[END_OF_TEXT]


def texts(path: str, start: int, stop: int) -> Iterator[str]:
    """The documents of the lines that start in bytes `start` … `stop - 1`."""
    with open(path, "rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()
        while file.tell() < stop and (line := file.readline()):
            yield json.loads(line)["text"]


def pack(path: str, start: int, stop: int, output: str) -> int:
    """Tokenize a range of a JSONL file, pack it into sequences and save them; returns the tokens, EOS counted."""
    documents = texts(path, start, stop)
    ids: list[int] = []
    while batch := list(islice(documents, _BATCH)):
        for encoding in _tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            ids += encoding.ids
            ids.append(_eos)
    whole = len(ids) // SEQ_LENGTH * SEQ_LENGTH
    np.save(output, np.array(ids[:whole], np.uint16).reshape(-1, SEQ_LENGTH))
    return len(ids)


def main(path: str, tokenizer: str, output: str, processes: int) -> None:
    """Do the whole job."""
    os.makedirs(output, exist_ok=True)
    count = _RANGES * processes
    bounds = [os.path.getsize(path) * index // count for index in range(count + 1)]
    names = [os.path.join(output, f"{index:05d}.npy") for index in range(count)]
    with ProcessPoolExecutor(processes, get_context("spawn"), load, (tokenizer,)) as pool:
        print(sum(pool.map(pack, [path] * count, bounds[:-1], bounds[1:], names)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
