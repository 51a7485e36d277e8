"""Ids equal those of `transformers` on a corpus of natural oddities, for every kind of tokenizer, by every engine (G9).

The corpus: Python's standard library with its test data, text files of the installed packages, a Debian system's
documentation files where there are any, and random Unicode. Broken UTF-8 in them is replaced: its policy is tested
elsewhere.
"""

import functools
import site
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.tokenizers import FAST, MAKERS, made, random_texts
from tokentar.shard_writer.tokenizing.describe import describe
from tokentar.shard_writer.tokenizing.encoder import DocumentEncoder

ROOTS = [  # folder, files wanted, bytes at most of one of them
    (Path(sysconfig.get_path("stdlib")), 70, 12_000),
    (Path(site.getsitepackages()[0]), 70, 12_000),
    (Path("/usr/share/doc"), 40, 12_000),
]
SUFFIXES = {".py", ".pyi", ".txt", ".md", ".rst", ".html", ".json", ".xml", ".c", ".h", ".pem", ".po", "", ".typed"}


def files_below(root: Path, most_bytes: int) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.suffix in SUFFIXES and path.is_file() and 0 < path.stat().st_size <= most_bytes:
            yield path


@functools.cache
def corpus() -> tuple[str, ...]:
    """Documents spread evenly over the files of each folder, those with special tokens in them and random Unicode."""
    texts = []
    for root, count, most_bytes in ROOTS:
        paths = list(files_below(root, most_bytes))
        texts += [path.read_text(errors="replace") for path in paths[:: max(1, len(paths) // count)]]
    special = ["<|endoftext|>", "a</s>b", "[CLS][SEP]", "<｜end▁of▁sentence｜>", "▁", "##s", "<0x0A>"]
    return (*texts, *random_texts(300), *special)


@functools.cache
def true_ids(name: str) -> list[list[int]]:
    """What `transformers` gives: the document, nothing added, special tokens as text."""
    ids: list[list[int]] = made(name)(list(corpus()), add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return ids


PATHS = [(name, engine) for name in MAKERS if "with BOS" not in name for engine in ("fastokens", "tokenizers")]


@pytest.mark.parametrize(("name", "engine"), [path for path in PATHS if path[1] == "tokenizers" or path[0] in FAST])
def test_ids_equal_those_of_transformers_on_every_document_of_an_odd_corpus(name: str, engine: str) -> None:
    tokenizer = made(name)
    spec = describe(tokenizer, name=name, add_bos=False, engine=engine)
    ids, lengths = DocumentEncoder(spec).encode(list(corpus()))
    documents = np.split(ids, np.cumsum(lengths)[:-1])
    for text, found, wanted in zip(corpus(), documents, true_ids(name), strict=True):
        assert found.tolist() == [*wanted, tokenizer.eos_token_id], text[:200]
