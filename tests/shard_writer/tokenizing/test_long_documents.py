"""Long documents in pieces: the ids of the whole (G9), in memory and time of a piece (G11)."""

import random

import numpy as np
import pytest

from tests.helpers.tokenizers import FAST, made, natural_texts
from tokentar.shard_writer.tokenizing import long_documents
from tokentar.shard_writer.tokenizing.describe import describe
from tokentar.shard_writer.tokenizing.encoder import ENGINES, DocumentEncoder

CHARS = 60_000
NAMES = ["bytes", "GPT-2 like", "Llama 3 like", "Llama 2 like", "Unigram", "WordPiece"]


def random_text() -> str:
    draw = random.Random(1)
    planes = [range(32, 127), range(0x20, 0x800), range(0x800, 0xD800), range(0xE000, 0x110000)]
    return "".join(chr(draw.choice(draw.choice(planes))) for _ in range(CHARS))


PROSE = "".join(natural_texts(40))[:CHARS]
DOCUMENTS = {
    "prose": PROSE,
    "one line": PROSE.replace("\n", " "),
    "no space": PROSE.replace("\n", "").replace(" ", ""),
    "one letter": "x" * CHARS,
    "one digit": "7" * CHARS,
    "spaces": " " * CHARS + "a",
    "newlines": "\n" * CHARS + "a",
    "accents put behind": "e\u0301" * (CHARS // 2),
    "everything": random_text(),
}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_documents, "PIECE_CHARS", 1 << 13)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("name", NAMES)
def test_ids_of_pieces_are_those_of_the_whole_document(name: str, kind: str) -> None:
    tokenizer, text = made(name), DOCUMENTS[kind]
    whole = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    spec = describe(tokenizer, name=name)
    ids, lengths = DocumentEncoder(spec).encode(["a", text, "b"])
    short, document, _ = np.split(ids, np.cumsum(lengths)[:-1])
    assert short.tolist()[-1] == tokenizer.eos_token_id
    assert document.tolist() == [*spec.prefix, *whole, tokenizer.eos_token_id]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["prose", "one line", "one letter", "spaces"])
@pytest.mark.parametrize("name", ["bytes", "GPT-2 like", "Llama 2 like"])
def test_no_more_than_a_piece_is_tokenized_at_a_time(name: str, kind: str) -> None:
    engine = ENGINES["fastokens" if name in FAST else "tokenizers"](describe(made(name), name=name))
    sizes = []

    def encode(text: str) -> long_documents.Ids:
        sizes.append(len(text))
        return engine.encode([text])[0]

    assert sum(map(len, long_documents.encode_in_pieces(DOCUMENTS[kind], encode))) > 0
    assert max(sizes) < 2 * long_documents.PIECE_CHARS
    assert sum(sizes) < 25 * CHARS  # linear, of pieces that are small against the trials around each cut


def test_a_text_that_cannot_be_cut_is_tokenized_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_documents, "PIECE_CHARS", 1 << 13)

    def number_of_characters(text: str) -> long_documents.Ids:  # every id knows of the whole text
        return np.full(len(text), len(text), np.uint32)

    (ids,) = long_documents.encode_in_pieces("x" * CHARS, number_of_characters)
    assert ids.tolist() == [CHARS] * CHARS
