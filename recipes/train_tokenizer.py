"""Train a small byte-level BPE tokenizer on the spot, for the quickstart: see --help."""

import argparse
import glob
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"


def texts(pattern: str) -> Iterator[str]:
    """The content of the files that a glob names."""
    for path in sorted(glob.glob(pattern, recursive=True)):
        yield Path(path).read_text(errors="replace")


def train(pattern: str, vocab_size: int) -> PreTrainedTokenizerFast:
    """A GPT-2-like tokenizer of `vocab_size` tokens, the last of which ends a document."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts(pattern), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True, help="glob of text files (** goes through folders)")
    parser.add_argument("--vocab_size", type=int, default=4096, help="tokens in all (default: 4096)")
    parser.add_argument("--output", required=True, help="folder of the tokenizer")
    arguments = parser.parse_args()
    tokenizer = train(arguments.input, arguments.vocab_size)
    tokenizer.save_pretrained(arguments.output)
    print(f"{arguments.output}: {len(tokenizer)} tokens, documents end with {END_OF_TEXT}")
