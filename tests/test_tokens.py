"""Ids equal those of the `transformers` tokenizer, document by document, whatever engine works them out (G9)."""

import functools
import random
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from shard_writer import SettingError, write_shards
from shard_writer.tokens import DocumentEncoder, describe, fingerprint
from tests.tokenizers import byte_tokenizer
from tests.written import constant_length, first_ids, jsonl, rows_of

ENGINES = ["fastokens", "tokenizers", "transformers"]
EDGES = ["a</s>b", "<s>", "</s></s>", "<|endoftext|>", " ", "\n", "\x00", "\ufeff", "a\r\n\r\nb", "x" * 5000, "\u0301a"]


def natural_texts(count: int) -> list[str]:
    """The first 3,000 characters of files of Python's standard library."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-m]*/*.py"))
    texts = [path.read_text(errors="replace")[:3000] for path in files]
    return [text for text in texts if text][:count]


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


def with_template(tokenizer: PreTrainedTokenizerFast, single: str) -> PreTrainedTokenizerFast:
    """The tokenizer with a template such as `<s> $A`, which says what stands around a document."""
    special = [("<s>", tokenizer.bos_token_id), ("</s>", tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=special)
    return tokenizer


def trained(model: Any, pre_tokenizer: Any, decoder: Any, texts: list[str], **options: Any) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False, **options
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def gpt2_like(texts: list[str]) -> PreTrainedTokenizerFast:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(models.BPE(), splitter, decoders.ByteLevel(), texts, initial_alphabet=alphabet)


def llama_like(texts: list[str]) -> PreTrainedTokenizerFast:
    model = models.BPE(unk_token="<unk>", fuse_unk=True)
    return with_template(trained(model, pre_tokenizers.Metaspace(), decoders.Metaspace(), texts), "<s> $A")


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return natural_texts(200) + random_texts(200) + EDGES


@pytest.fixture(scope="session")
def made(texts: list[str]) -> Callable[[str], Any]:
    """Tokenizers by name, each built once."""
    makers: dict[str, Callable[[], Any]] = {
        "bytes": byte_tokenizer,
        "bytes with BOS": lambda: with_template(byte_tokenizer(), "<s> $A"),
        "bytes with BOS and EOS": lambda: with_template(byte_tokenizer(), "<s> $A </s>"),
        "GPT-2 like": lambda: gpt2_like(texts[:40]),
        "Llama like": lambda: llama_like(texts[:40]),
    }
    return functools.cache(lambda name: makers[name]())


BEFORE = {"bytes": [], "bytes with BOS": [1], "bytes with BOS and EOS": [1], "GPT-2 like": [], "Llama like": [1]}


@pytest.fixture(scope="session")
def true_ids(texts: list[str], made: Callable[[str], Any]) -> Callable[[str], list[list[int]]]:
    """The ids that a tokenizer itself gives for each text, worked out once a tokenizer."""

    def ids(name: str) -> list[list[int]]:
        bare = [text.removeprefix("<s>") if BEFORE[name] else text for text in texts]
        documents = made(name)(bare, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [[*BEFORE[name], *document, 2] for document in documents]

    return functools.cache(ids)


@pytest.mark.parametrize("engine", [None, *ENGINES])
@pytest.mark.parametrize("name", BEFORE)
def test_ids_equal_those_of_transformers_on_every_document(
    name: str,
    engine: str | None,
    texts: list[str],
    made: Callable[[str], Any],
    true_ids: Callable[[str], list[list[int]]],
) -> None:
    tokenizer = made(name)
    if (name, engine) == ("Llama like", "fastokens"):
        with pytest.raises(SettingError, match="tokenizer_engine: fastokens does not give the ids of tokenizer"):
            describe(tokenizer, name=name, engine=engine)
        return
    ids, lengths = DocumentEncoder(describe(tokenizer, name=name, engine=engine)).encode(texts)
    documents = np.split(ids, np.cumsum(lengths)[:-1])
    for text, found, wanted in zip(texts, documents, true_ids(name), strict=True):
        assert found.tolist() == wanted, text


def test_sequences_are_cut_from_the_ids_of_transformers(
    texts: list[str], made: Callable[[str], Any], tmp_path: Path
) -> None:
    tokenizer, source = made("GPT-2 like"), jsonl(tmp_path / "a.jsonl", texts)
    documents = [[*tokenizer(text, split_special_tokens=True)["input_ids"], tokenizer.eos_token_id] for text in texts]
    manifest = write_shards(
        input=source, tokenizer=tokenizer, output=tmp_path / "out", seq_length=256, shuffle=False, workers=0
    )
    assert rows_of(manifest) == constant_length(documents, 256)


@pytest.mark.parametrize(
    ("documents", "count", "ids"),
    [
        (["ab", "c"], 5, [100, 101, 2, 102, 2]),
        (["é\n\0"], 5, [198, 172, 13, 3, 2]),
        (["\U0001f44d"], 5, [243, 162, 148, 144, 2]),
        (["a</s>b"], 7, [100, 63, 50, 118, 65, 101, 2]),
        (["<s>a"], 5, [63, 118, 65, 100, 2]),
        (["ab", "", None, "c"], 5, [100, 101, 2, 102, 2]),
    ],
)
def test_each_document_becomes_its_bytes_and_one_eos(
    documents: list[str | None], count: int, ids: list[int], t0: Any, tmp_path: Path
) -> None:
    assert first_ids(t0, jsonl(tmp_path / "a.jsonl", documents), tmp_path / "out", count) == ids


@pytest.mark.parametrize("template", ["<s> $A", "<s> $A </s>", None])
@pytest.mark.parametrize("text", ["ab", "<s>ab"])
def test_a_document_starts_with_exactly_one_bos(template: str | None, text: str, tmp_path: Path) -> None:
    tokenizer = with_template(byte_tokenizer(), template) if template else byte_tokenizer()
    source = jsonl(tmp_path / "a.jsonl", [text, text])
    ids = first_ids(tokenizer, source, tmp_path / "out", 8, add_bos=None if template else True)
    assert ids == [1, 100, 101, 2] * 2


def test_bos_can_be_left_out(tmp_path: Path) -> None:
    tokenizer = with_template(byte_tokenizer(), "<s> $A")
    source = jsonl(tmp_path / "a.jsonl", ["ab"])
    assert first_ids(tokenizer, source, tmp_path / "out", 3, add_bos=False) == [100, 101, 2]


def test_added_tokens_are_found_and_get_the_ids_behind_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<new>"])
    assert (tokenizer.vocab_size, len(tokenizer)) == (259, 260)
    assert first_ids(tokenizer, jsonl(tmp_path / "a.jsonl", ["a<new>"]), tmp_path / "out", 3) == [100, 259, 2]


@pytest.mark.parametrize(("extra", "dtype"), [(65_276, "uint16"), (65_277, "uint32")])
def test_ids_beyond_16_bits_are_stored_whole(extra: int, dtype: str, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(extra)
    tokenizer.add_tokens(["<new>"])
    last = 259 + extra  # 65,535 and 65,536 are the border
    ids = first_ids(tokenizer, jsonl(tmp_path / "a.jsonl", ["a<new>"]), tmp_path / "out", 3)
    assert ids == [100, last, 2]
    assert f'"dtype": "{dtype}"' in (tmp_path / "out" / "dataset.json").read_text()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_document_of_a_million_characters_is_tokenized_whole(engine: str, t0: Any, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["x" * 10**6])
    manifest = write_shards(
        input=source,
        tokenizer=t0,
        output=tmp_path / "out",
        seq_length=1024,
        num_shards=1,
        tokenizer_engine=engine,
        workers=0,
    )
    totals = manifest.info.totals
    assert (totals.documents, totals.tokens, totals.sequences, totals.tail) == (1, 1_000_001, 976, 577)
    assert np.all(manifest.open(0).rows == ord("x") + 3)  # the EOS is in the tail


def test_truncation_padding_and_length_limits_of_a_tokenizer_are_left_aside(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.model_max_length = 4
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=16)
    source = jsonl(tmp_path / "a.jsonl", ["abcdef", "a"])
    for engine in ENGINES:
        ids = first_ids(tokenizer, source, tmp_path / engine, 9, tokenizer_engine=engine)
        assert ids == [100, 101, 102, 103, 104, 105, 2, 100, 2]


def test_a_tokenizer_without_eos_is_refused_unless_one_is_named(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    source = jsonl(tmp_path / "a.jsonl", ["ab"])
    with pytest.raises(SettingError, match=r"has no EOS token, so documents would run .* --eos_token"):
        first_ids(tokenizer, source, tmp_path / "out", 3)
    with pytest.raises(SettingError, match=r"eos_token: '<end>' is not in the vocabulary"):
        first_ids(tokenizer, source, tmp_path / "out", 3, eos_token="<end>")
    assert not (tmp_path / "out").exists()
    assert first_ids(tokenizer, source, tmp_path / "out", 3, eos_token="<pad>") == [100, 101, 0]


def test_bos_is_refused_where_the_tokenizer_has_none() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = None
    with pytest.raises(SettingError, match=r"add_bos: tokenizer 'x' has no BOS token"):
        describe(tokenizer, name="x", add_bos=True)


def test_a_tokenizer_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"tokenizer '.*nowhere' cannot be loaded"):
        write_shards(input="x", tokenizer=str(tmp_path / "nowhere"), output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_fingerprint_changes_with_vocabulary_eos_and_behaviour_only(tmp_path: Path) -> None:
    same = byte_tokenizer()
    same.save_pretrained(tmp_path / "saved")
    reloaded = PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved")
    longer = byte_tokenizer()
    longer.add_tokens(["<new>"])
    other_splits = byte_tokenizer()
    other_splits.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    base = fingerprint(byte_tokenizer(), 2)
    assert fingerprint(same, 2) == fingerprint(reloaded, 2) == base
    assert len({base, fingerprint(longer, 2), fingerprint(other_splits, 2), fingerprint(same, 0)}) == 4
