"""What a worker needs to know of a tokenizer, and the fingerprint by which sets and training recognise it (G9)."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from tokentar.shard_writer.format.dataset_info import TokenizerInfo
from tokentar.shard_writer.format.shards import token_dtype
from tokentar.shard_writer.tokenizing.engine_check import Encoded

PROBES = (
    "ab",
    " ab",
    "ab ",
    "  two  spaces",
    "\n\nnew\r\nlines\t\ttabs",
    "don't WON'T it's",
    "été naïve Ångström",
    "日本語のテキスト",
    "한국어 텍스트",
    "👍🏽 👩‍👩‍👧 🇫🇷",
    "e\u0301 \ufb01 \u212b ½ ①",
    "\u200b\u00a0\u2028\u2029\ufeff\u0000\u0007",
    "0 12 345 6789 1234567890",
    "x" * 300,
    "def f(a, b):\n    return a+b\n",
    "</s><s><pad><|endoftext|><unk>[CLS] [SEP] [MASK]",
    "https://example.org/?q=1&r=%20",
    "مرحبا بالعالم",
    "ไทย ภาษา",
    "a\u0300\u0301\u0302",
    "\U0001d54f\U0010fffd",
    "$€£¥ --- ... ___",
)


@dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """All that a worker process needs to tokenize as the user's tokenizer does; small, and pickled once a worker."""

    info: TokenizerInfo
    engine: str  # fastokens, tokenizers or transformers
    definition: str  # tokenizer.json, "" for tokenizers written in Python
    pickled: bytes  # those
    prefix: tuple[int, ...]  # ids before each document
    suffix: tuple[int, ...]  # ids behind it; the last is EOS
    bos_text: str  # dropped where a document starts with it and `prefix` already is that token

    @property
    def surroundings(self) -> dict[str, list[int]]:
        """What stands around each document, as dataset.json has it."""
        return {"prefix_ids": list(self.prefix), "suffix_ids": list(self.suffix)}

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of stored ids."""
        return token_dtype(self.info.vocab_length)


def flatten(lists: Sequence[Sequence[int]]) -> Encoded:
    """Lists of ids as one flat array with offsets."""
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(ids) for ids in lists], out=offsets[1:])
    return np.fromiter(chain.from_iterable(lists), np.uint32, count=int(offsets[-1])), offsets


def plain_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of `text` by a `transformers` tokenizer, nothing added, special tokens as text."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=True, truncation=False)["input_ids"]
    return ids


def fingerprint(tokenizer: Any, eos_token_id: int) -> str:
    """32 hexadecimal digits that change with the vocabulary, the EOS or the ids of the probes, and not with library versions."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=itemgetter(1, 0))
    probes = [plain_ids(tokenizer, probe) for probe in PROBES]
    text = json.dumps([len(tokenizer), eos_token_id, vocabulary, probes])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
