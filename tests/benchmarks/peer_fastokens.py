"""python -m tests.benchmarks.peer_fastokens FOLDER TOKENIZER_JSON: one bare pass of the tokenizer over text in memory.

On all cores, nothing read and nothing written while the clock runs. Prints the tokens, one more for each document where
we put an EOS, and the seconds.
"""

import json
import sys
import time
from pathlib import Path

import fastokens


def main(folder: str, tokenizer: str) -> None:
    """Do the whole job."""
    lines = (line for path in sorted(Path(folder).glob("*.jsonl")) for line in path.open(encoding="utf-8"))
    texts = [json.loads(line)["text"] for line in lines]
    engine = fastokens.Tokenizer.from_file(tokenizer)
    engine.encode_batch_flat(texts[:8], split_special_tokens=True)
    start = time.perf_counter()
    ids, _ = engine.encode_batch_flat(texts, split_special_tokens=True)
    seconds = time.perf_counter() - start
    print(len(memoryview(ids).cast("B")) // 4 + len(texts), seconds)


if __name__ == "__main__":
    main(*sys.argv[1:3])
