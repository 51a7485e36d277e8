"""From text to ids: exactly those of the `transformers` tokenizer (G9), by the fastest engine that gives them.

Three engines, each used only when the one before it does not load the tokenizer or disagrees with it on the probes:
`fastokens` (Rust, flat batches), `tokenizers` (what `transformers` itself runs) and `transformers` (tokenizers written
in Python). Text that looks like a special token is text. What the tokenizer itself puts around a document (BOS, [CLS])
is put there once, and each document ends with one EOS.
"""

import hashlib
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_writer import flat, windows
from shard_writer.checked import CheckedEngine, Encoded, Engine
from shard_writer.errors import SettingError
from shard_writer.manifest import TokenizerInfo
from shard_writer.shards import TokenIds, token_dtype

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


class FastokensEngine:
    """`fastokens`: one flat batch, no object per token."""

    def __init__(self, spec: TokenizerSpec) -> None:
        import fastokens

        self._tokenizer = fastokens.Tokenizer.from_json_str(spec.definition)

    def encode(self, texts: list[str]) -> Encoded:
        """See Engine."""
        ids, offsets = self._tokenizer.encode_batch_flat(texts, split_special_tokens=True)
        return np.frombuffer(ids, np.uint32), np.frombuffer(offsets, np.uint64).astype(np.int64)


class TokenizersEngine:
    """`tokenizers`, the library behind fast `transformers` tokenizers."""

    def __init__(self, spec: TokenizerSpec) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(spec.definition)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True

    def encode(self, texts: list[str]) -> Encoded:
        """See Engine."""
        return flatten([e.ids for e in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)])


class TransformersEngine:
    """A tokenizer object of `transformers`, for those that `tokenizers` cannot express."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self._tokenizer = pickle.loads(spec.pickled)  # our own pickle, from this run's main process

    def encode(self, texts: list[str]) -> Encoded:
        """See Engine."""
        return flatten([plain_ids(self._tokenizer, text) for text in texts])


ENGINES: dict[str, Callable[[TokenizerSpec], Engine]] = {
    "fastokens": FastokensEngine,
    "tokenizers": TokenizersEngine,
    "transformers": TransformersEngine,
}


class DocumentEncoder:
    """Texts to stored ids: engine, prefix and suffix, bounds, dtype."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self._spec = spec
        self._engine: Engine = ENGINES[spec.engine](spec)
        if spec.engine == "fastokens":
            self._engine = CheckedEngine(self._engine, TokenizersEngine(spec))

    def encode(self, texts: list[str]) -> tuple[TokenIds, NDArray[np.int64]]:
        """Ids (tokens,) in the stored dtype, and the length of each document (texts,) int64, prefix and EOS included."""
        spec = self._spec
        if spec.bos_text:
            texts = [text.removeprefix(spec.bos_text) for text in texts]
        if max(map(len, texts), default=0) > windows.PIECE_CHARS:
            return self._encode_long(texts)
        ids, offsets = self._engine.encode(texts)
        lengths = np.diff(offsets) + len(spec.prefix) + len(spec.suffix)
        return flat.surround(self._stored(ids), offsets, spec.prefix, spec.suffix), lengths

    def _encode_long(self, texts: list[str]) -> tuple[TokenIds, NDArray[np.int64]]:
        """The same for texts of which some are so long that they are tokenized in pieces."""
        prefix, suffix = (np.array(around, np.uint32) for around in (self._spec.prefix, self._spec.suffix))
        parts: list[TokenIds] = []
        ends = []
        for text in texts:
            parts += map(self._stored, (prefix, *windows.encode_in_pieces(text, self._ids_of), suffix))
            ends.append(len(parts))
        sizes = np.cumsum([0, *map(len, parts)])
        ids: TokenIds = np.concatenate(parts, dtype=self._spec.dtype)
        return ids, np.diff(sizes[[0, *ends]])

    def _ids_of(self, text: str) -> NDArray[np.uint32]:
        return self._engine.encode([text])[0]

    def _stored(self, ids: NDArray[np.uint32]) -> TokenIds:
        """Ids in the stored dtype. Raises SettingError for one beyond the vocabulary."""
        info = self._spec.info
        if len(ids) and int(ids.max()) >= info.vocab_length:
            raise SettingError(f"tokenizer {info.name}: gave id {ids.max()}, but len(tokenizer) is {info.vocab_length}")
        return ids.astype(self._spec.dtype)


def flatten(lists: Sequence[Sequence[int]]) -> Encoded:
    """Lists of ids as one flat array with offsets."""
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(ids) for ids in lists], out=offsets[1:])
    return np.fromiter(chain.from_iterable(lists), np.uint32, count=int(offsets[-1])), offsets


def plain_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of `text` by a `transformers` tokenizer, nothing added, special tokens as text."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=True, truncation=False)["input_ids"]
    return ids


def describe(
    tokenizer: Any, *, name: str, eos_token: str | None = None, add_bos: bool | None = None, engine: str | None = None
) -> TokenizerSpec:
    """Everything about a `transformers` tokenizer that writing needs. Raises SettingError when it has no EOS."""
    eos = _eos_id(tokenizer, name, eos_token)
    prefix, suffix = _surroundings(tokenizer)
    bos = tokenizer.bos_token_id
    if add_bos is False:
        prefix = ()
    elif add_bos and (bos is None or not prefix):
        if bos is None:
            raise SettingError(
                f"add_bos: tokenizer {name!r} has no BOS token; leave add_bos out or choose another tokenizer"
            )
        prefix = (bos,)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    spec = TokenizerSpec(
        info=TokenizerInfo(
            name=name, fingerprint=fingerprint(tokenizer, eos), vocab_length=len(tokenizer), eos_token_id=eos
        ),
        engine="transformers",
        definition=backend.to_str() if backend is not None else "",
        pickled=b"" if backend is not None else pickle.dumps(tokenizer),
        prefix=prefix,
        suffix=(*suffix, eos) if suffix[-1:] != (eos,) else suffix,
        bos_text=tokenizer.bos_token if bos is not None and bos in prefix else "",
    )
    return _with_engine(spec, tokenizer, engine)


def fingerprint(tokenizer: Any, eos_token_id: int) -> str:
    """32 hexadecimal digits that change with the vocabulary, the EOS or the ids of the probes, and not with library versions."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=itemgetter(1, 0))
    probes = [plain_ids(tokenizer, probe) for probe in PROBES]
    text = json.dumps([len(tokenizer), eos_token_id, vocabulary, probes])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _eos_id(tokenizer: Any, name: str, eos_token: str | None) -> int:
    if eos_token is not None:
        found = tokenizer.get_vocab().get(eos_token)
        if found is None:
            raise SettingError(f"eos_token: {eos_token!r} is not in the vocabulary of tokenizer {name!r}")
        return int(found)
    if tokenizer.eos_token_id is None:
        raise SettingError(
            f"tokenizer {name!r} has no EOS token, so documents would run into one another; set tokenizer.eos_token, "
            "or name one of its tokens with --eos_token"
        )
    return int(tokenizer.eos_token_id)


def _surroundings(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer itself puts before and behind a text."""
    bare = plain_ids(tokenizer, PROBES[0])
    full: list[int] = tokenizer(PROBES[0], add_special_tokens=True, split_special_tokens=True)["input_ids"]
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise SettingError(
        f"the tokenizer turns {PROBES[0]!r} into {bare} without and {full} with special tokens: no common part"
    )


def _with_engine(spec: TokenizerSpec, tokenizer: Any, wanted: str | None) -> TokenizerSpec:
    """The spec with the fastest engine that gives the tokenizer's own ids on every probe, or with the engine asked for."""
    truth = flatten([plain_ids(tokenizer, probe) for probe in PROBES])
    names = [wanted] if wanted else ["fastokens", "tokenizers"] if spec.definition else []
    for name in names:
        if _agrees(name, spec, truth):
            return replace(spec, engine=name)
    if wanted and wanted != "transformers":
        raise SettingError(
            f"tokenizer_engine: {wanted} does not give the ids of tokenizer {spec.info.name!r}; leave it out"
        )
    return replace(spec, pickled=pickle.dumps(tokenizer))


def _agrees(name: str, spec: TokenizerSpec, truth: Encoded) -> bool:
    try:
        ids, offsets = ENGINES[name](spec).encode(list(PROBES))
    except Exception:  # any refusal to load or encode means: not with this engine
        return False
    return np.array_equal(ids, truth[0]) and np.array_equal(offsets, truth[1])
