"""litdata, used as its page on LLM pre-training shows: optimize with TokensLoader, then StreamingDataset.

python -m tests.benchmarks.peer_litdata write FOLDER TOKENIZER_JSON OUTPUT WORKERS ENGINE    prints the tokens
                                        prepare ROWS_NPY OUTPUT CHUNKS                       the set that is read
                                        rate|first|mixed SET WORKERS SECONDS

One file of the corpus a worker. ENGINE fastokens puts that library under it, 64 documents at a time.
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import fastokens
import numpy as np
import torch
from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, TokensLoader, optimize
from tokenizers import Tokenizer

from tests.benchmarks import clock
from tests.benchmarks.corpus import END_OF_TEXT

BATCH_SIZE, SEQ_LENGTH = 8, 2048
_CHUNK_TOKENS = SEQ_LENGTH * 8012  # as its page has it
_BATCH = 64


def texts(path: str) -> Iterator[str]:
    """The documents of a file."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def shipped(path: str, tokenizer: str) -> Iterator[torch.Tensor]:
    """Its own way: one document after the other."""
    engine = Tokenizer.from_file(tokenizer)
    eos = engine.token_to_id(END_OF_TEXT)
    for text in texts(path):
        yield torch.tensor([*engine.encode(text).ids, eos], dtype=torch.uint16)


def fast(path: str, tokenizer: str) -> Iterator[torch.Tensor]:
    """The same with fastokens."""
    engine, documents = fastokens.Tokenizer.from_file(tokenizer), texts(path)
    eos = np.uint16(engine.token_to_id(END_OF_TEXT))
    while batch := list(islice(documents, _BATCH)):
        flat, borders = engine.encode_batch_flat(batch, split_special_tokens=True)
        ids, ends = np.frombuffer(flat, np.uint32).astype(np.uint16), np.frombuffer(borders, np.uint64)[1:-1]
        for document in np.split(ids, ends.tolist()):
            yield torch.from_numpy(np.append(document, eos))


def rows_of(part: tuple[int, int], path: str) -> Iterator[torch.Tensor]:
    """Rows of an array in a file."""
    for row in np.load(path, mmap_mode="r")[slice(*part)]:
        yield torch.from_numpy(row.copy())


def tokens_in(folder: str) -> int:
    """Tokens in a set."""
    chunks = json.loads((Path(folder) / "index.json").read_text())["chunks"]
    return sum(chunk["dim"] for chunk in chunks)


def write(folder: str, tokenizer: str, output: str, workers: int, engine: str) -> None:
    """Tokenize a corpus."""
    optimize(
        fn=partial({"shipped": shipped, "fastokens": fast}[engine], tokenizer=tokenizer),
        inputs=[str(path) for path in sorted(Path(folder).glob("*.jsonl"))],
        output_dir=output,
        chunk_size=_CHUNK_TOKENS,
        item_loader=TokensLoader(),
        num_workers=workers,
    )
    print(tokens_in(output))


def prepare(path: str, output: str, chunks: int) -> None:
    """The set that is read: the rows of an array, in so many chunks at most."""
    rows = len(np.load(path, mmap_mode="r"))
    optimize(
        fn=partial(rows_of, path=path),
        inputs=[(0, rows)],
        output_dir=output,
        chunk_size=-(-rows // chunks) * SEQ_LENGTH,
        item_loader=TokensLoader(),
        num_workers=1,
    )


def build(folder: str, workers: int) -> clock.Epoch:
    """A loader."""
    dataset = StreamingDataset(folder, item_loader=TokensLoader(block_size=SEQ_LENGTH), shuffle=True, drop_last=True)
    loader = StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=workers)
    return lambda: (batch.long() for batch in loader)


def build_mixed(folder: str) -> clock.Epoch:
    """A loader of all sets below a folder, the i-th of weight i."""
    folders = sorted(Path(folder).iterdir())
    sets = [
        StreamingDataset(str(path), item_loader=TokensLoader(block_size=SEQ_LENGTH), shuffle=True) for path in folders
    ]
    mixed = CombinedStreamingDataset(sets, weights=[float(i) for i in range(1, len(sets) + 1)], iterate_over_all=False)
    loader = StreamingDataLoader(mixed, batch_size=BATCH_SIZE, num_workers=0)
    return lambda: (batch.long() for batch in loader)


def main(what: str, arguments: list[Any]) -> None:
    """One command."""
    if what == "write":
        write(*arguments[:3], int(arguments[3]), arguments[4])
    elif what == "prepare":
        prepare(*arguments[:2], int(arguments[2]))
    elif what == "mixed":
        print(clock.tokens_per_second(build_mixed(arguments[0]), float(arguments[2])))
    elif what == "first":
        print(clock.seconds_to_first(lambda: build(arguments[0], int(arguments[1]))))
    else:
        print(clock.tokens_per_second(build(arguments[0], int(arguments[1])), float(arguments[2])))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
