"""What the benchmarks read: a corpus as one JSONL file, and a tokenizer trained on it. Nothing is downloaded.

The text is the Python source at hand (standard library and installed packages) or what a glob names, each distinct text
once and in seeded order. Texts that hold the end-of-text mark are left out, as tools differ in how they read it. When
more is asked for than there is, the same documents follow with their lines shuffled, so that whole texts do not come
again; their words do, so a corpus of many passes is kind to caches of words. The figures say how many passes were
needed.
"""

import glob
import json
import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

VOCAB_SIZE = 32_000
END_OF_TEXT = "<|endoftext|>"
_TRAINING_CHARS = 16 << 20
_SEED = 0


@dataclass(frozen=True)
class Corpus:
    """A JSONL file of documents under the key `text`."""

    path: Path
    documents: int
    text_bytes: int
    passes: float  # how often the texts at hand were gone through; at most 1: no text comes again

    def __str__(self) -> str:
        again = "no text twice" if self.passes <= 1 else f"{self.passes:.1f} passes, shuffled lines from the second on"
        return f"{self.text_bytes / 1e6:,.1f} MB of text in {self.documents:,} documents ({again})"


def write_corpus(path: Path, megabytes: float, pattern: str | None = None) -> Corpus:
    """Write about `megabytes` of text (10**6 bytes) as JSONL; a smaller corpus is the start of a larger one."""
    documents = written = 0
    texts = _endless(source_files(pattern))
    with open(path, "w", encoding="utf-8") as file:
        while written < megabytes * 1e6:
            text, passes = next(texts)
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            documents += 1
            written += len(text.encode())
    return Corpus(path, documents, written, passes)


def source_files(pattern: str | None) -> list[Path]:
    """The files that a glob names, or all Python source at hand, in seeded order. Exits when there are none."""
    if pattern is not None:
        paths = [Path(name) for name in glob.glob(pattern, recursive=True) if os.path.isfile(name)]
    else:
        stdlib, packages = (Path(sysconfig.get_path(key)) for key in ("stdlib", "purelib"))
        paths = [path for path in stdlib.rglob("*.py") if "site-packages" not in path.parts]
        paths += list(packages.rglob("*.py"))
    if not paths:
        raise SystemExit(f"--corpus {pattern!r} matches no file")
    paths.sort()
    Random(_SEED).shuffle(paths)
    return paths


def _endless(paths: list[Path]) -> Iterator[tuple[str, float]]:
    """(text, passes so far) without end: the distinct texts of the files, then the same with shuffled lines."""
    seen: set[int] = set()
    for number in count():
        for index, path in enumerate(paths):
            for line, text in enumerate(_texts(path)):
                if not text or END_OF_TEXT in text or (number == 0 and hash(text) in seen):
                    continue
                seen.add(hash(text))
                yield shuffled_lines(text, f"{number} {index} {line}") if number else text, number + index / len(paths)
        if not seen:
            raise SystemExit("the corpus holds no text")


def _texts(path: Path) -> Iterable[str]:
    """The documents of a file: its lines where it is JSONL, else the whole file; what is no UTF-8 is passed over."""
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line)["text"] for line in path.read_text().splitlines()]
        return [path.read_text(encoding="utf-8")]
    except UnicodeDecodeError:
        return []


def shuffled_lines(text: str, seed: str) -> str:
    """The same lines in an order drawn by `seed`."""
    lines = text.splitlines(keepends=True)
    Random(seed).shuffle(lines)
    return "".join(lines)


def split_lines(path: Path, folder: Path, parts: int) -> None:
    """Copy a file into `parts` files of whole lines and about equal sizes, for those that deal out files: 00000.jsonl and so on."""
    folder.mkdir()
    share = -(-path.stat().st_size // parts)
    with open(path, "rb") as source:
        for part in range(parts):
            (folder / f"{part:05d}.jsonl").write_bytes(
                source.read(max(0, (part + 1) * share - source.tell())) + source.readline()
            )


def read_texts(path: Path, most_chars: int) -> Iterator[str]:
    """Documents from the start of a corpus, until they have `most_chars` characters."""
    read = 0
    with open(path, encoding="utf-8") as file:
        for line in file:
            text = json.loads(line)["text"]
            yield text
            read += len(text)
            if read >= most_chars:
                return


def train_tokenizer(corpus: Path, folder: Path, vocab_size: int = VOCAB_SIZE) -> Path:
    """A GPT-2-like BPE of `vocab_size` tokens, learnt from the start of a corpus, in a folder that `transformers` loads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - 1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(read_texts(corpus, _TRAINING_CHARS), trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT).save_pretrained(folder)
    return folder
