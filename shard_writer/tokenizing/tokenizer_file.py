"""Tokenizers from their file tokenizer.json, without transformers, whose import takes longer than a small writing.

Only where the result is sure to be what `transformers.AutoTokenizer` gives (G9): for writing, where nothing but that
file can decide the ids; for a finished set, where the tokenizer has the set's fingerprint. Everything else is left to
transformers.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from tokentar.shard_writer.format.dataset_info import TokenizerInfo
from tokentar.shard_writer.tokenizing.spec import fingerprint

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
_WITHOUT_EFFECT = {"chat_template.jinja", "README.md", ".gitattributes"}  # other files of a folder; config.json has one
_GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")  # classes that take tokenizer.json as it is
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_IGNORED = {
    *("backend", "tokenizer_class", "model_max_length", "clean_up_tokenization_spaces", "chat_template"),
    *("is_local", "local_files_only"),
}  # keys of tokenizer_config.json that change no ids


class FileTokenizer:
    """A tokenizer of the library `tokenizers`, with those methods of a `transformers` tokenizer that writing and showing call."""

    def __init__(self, backend: Tokenizer, config: dict[str, Any], name: str) -> None:
        self.backend_tokenizer = backend
        self.name_or_path = name
        self.bos_token: str | None = config.get("bos_token")
        self.eos_token: str | None = config.get("eos_token")

    @property
    def bos_token_id(self) -> int | None:
        """The id of BOS, if there is one."""
        return None if self.bos_token is None else self.backend_tokenizer.token_to_id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        """The id of EOS, if there is one."""
        return None if self.eos_token is None else self.backend_tokenizer.token_to_id(self.eos_token)

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    def __call__(
        self, text: str, *, add_special_tokens: bool, split_special_tokens: bool, truncation: bool = False
    ) -> dict[str, list[int]]:
        """`input_ids` of a text, never truncated."""
        self.backend_tokenizer.encode_special_tokens = split_special_tokens
        return {"input_ids": self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}

    def get_vocab(self) -> dict[str, int]:
        """Token → id, added tokens included."""
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    def decode(self, ids: list[int]) -> str:
        """The text of some ids, special tokens included."""
        return self.backend_tokenizer.decode(ids, skip_special_tokens=False)


def load_for_writing(folder: str) -> FileTokenizer | None:
    """The tokenizer of a folder; None where something beside tokenizer.json could decide what AutoTokenizer makes of it."""
    path = Path(folder)
    if not folder or not path.is_dir() or {file.name for file in path.iterdir()} - _WITHOUT_EFFECT != {FILE, CONFIG}:
        return None
    config, backend = _read_config(path), _read_backend(path)
    if config is None or backend is None or config.get("tokenizer_class") not in _GENERIC:
        return None
    special = {key: config[key] for key in _SPECIAL if config.get(key) is not None}
    if set(config) - _IGNORED - set(_SPECIAL) or not all(isinstance(token, str) for token in special.values()):
        return None
    return FileTokenizer(backend, config, folder) if _adds_nothing(path, backend, set(special.values())) else None


def load_for_reading(folder: str, info: TokenizerInfo) -> FileTokenizer | None:
    """The tokenizer of a folder; None where it does not have the fingerprint that `info` names, or decodes in a special way."""
    config, backend = _read_config(Path(folder)), _read_backend(Path(folder))
    if config is None or backend is None or config.get("clean_up_tokenization_spaces"):
        return None
    tokenizer = FileTokenizer(backend, config, folder)
    return tokenizer if fingerprint(tokenizer, info.eos_token_id) == info.fingerprint else None


def _read_config(folder: Path) -> dict[str, Any] | None:
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def _read_backend(folder: Path) -> Tokenizer | None:
    """The tokenizer that a file defines; None where it defines truncation or padding too, or leaves what surrounds a text open."""
    try:
        backend = Tokenizer.from_file(str(folder / FILE))
    except Exception:  # the library raises nothing narrower; transformers will say what is wrong
        return None
    is_plain = backend.truncation is None and backend.padding is None and backend.post_processor is not None
    return backend if is_plain else None


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool


class _File(msgspec.Struct):
    added_tokens: list[_AddedToken]


def _adds_nothing(folder: Path, backend: Tokenizer, named: set[str]) -> bool:
    """Whether the added tokens that `tokenizers` has are those in the file, the `named` ones among them, as special tokens.

    transformers adds all of them once more: those in the file under their ids there, which `tokenizers` may have changed,
    and the named ones as special tokens.
    """
    try:
        tokens = msgspec.json.decode((folder / FILE).read_bytes(), type=_File).added_tokens
    except msgspec.MsgspecError:
        return False
    there = {id: token.content for id, token in backend.get_added_tokens_decoder().items()}
    is_as_written = len(tokens) == len(there) and {token.id: token.content for token in tokens} == there
    return is_as_written and named <= {token.content for token in tokens if token.special}
