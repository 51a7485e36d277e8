"""Tokenizers built on the spot."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<s>", "</s>")


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
