"""python -m tests.benchmarks.peer_gigatoken FOLDER TOKENIZER_JSON OUTPUT: gigatoken's encode_files and a raw dump.

Its own fastest way from JSONL to ids, used on all cores. The whole corpus and its ids are in memory; no shuffle, no
packing, no EOS, no checksums, nothing durable. Prints the tokens, one more for each document where we put an EOS.
"""

import sys
from pathlib import Path

import gigatoken
import numpy as np


def main(folder: str, tokenizer: str, output: str) -> None:
    """Do the whole job."""
    source = gigatoken.JsonlFileSource(sorted(Path(folder).glob("*.jsonl")), field="text")
    documents = gigatoken.Tokenizer(tokenizer).encode_files(source)
    Path(output).mkdir()
    ids, offsets = (np.asarray(part.data) for part in (documents.layout.content, documents.layout.offsets))
    ids.astype(np.uint16).tofile(Path(output) / "ids.bin")
    offsets.tofile(Path(output) / "offsets.bin")
    print(len(ids) + len(documents))


if __name__ == "__main__":
    main(*sys.argv[1:4])
