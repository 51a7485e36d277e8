"""From documents to stored ids, by one of three engines.

`fastokens` (Rust, flat batches), `tokenizers` (what `transformers` itself runs) and `transformers` (tokenizers written
in Python).
"""

import pickle
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.packing import ragged
from tokentar.shard_writer.packing.token_ids import TokenIds
from tokentar.shard_writer.tokenizing import long_documents
from tokentar.shard_writer.tokenizing.engine_check import CheckedEngine, Encoded, Engine
from tokentar.shard_writer.tokenizing.spec import TokenizerSpec, flatten, plain_ids


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
        if max(map(len, texts), default=0) > long_documents.PIECE_CHARS:
            return self._encode_long(texts)
        ids, offsets = self._engine.encode(texts)
        lengths = np.diff(offsets) + len(spec.prefix) + len(spec.suffix)
        return ragged.surround(self._stored(ids), offsets, spec.prefix, spec.suffix), lengths

    def _encode_long(self, texts: list[str]) -> tuple[TokenIds, NDArray[np.int64]]:
        """The same for texts of which some are so long that they are tokenized in pieces."""
        prefix, suffix = (np.array(around, np.uint32) for around in (self._spec.prefix, self._spec.suffix))
        parts: list[TokenIds] = []
        ends = []
        for text in texts:
            parts += map(self._stored, (prefix, *long_documents.encode_in_pieces(text, self._ids_of), suffix))
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
