"""Ids equal those of the `transformers` tokenizer, document by document, whatever engine works them out (G9)."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.helpers.tokenizers import BOS, FAST, MAKERS, byte_tokenizer, made, natural_texts, random_texts, with_template
from tests.helpers.written import constant_length, first_ids, jsonl, rows_of
from tokentar import InputError, SettingError, write_shards
from tokentar.shard_writer.tokenizing.describe import describe
from tokentar.shard_writer.tokenizing.encoder import DocumentEncoder, TokenizersEngine
from tokentar.shard_writer.tokenizing.engine_check import CheckedEngine, Encoded, Engine
from tokentar.shard_writer.tokenizing.spec import fingerprint, flatten

ENGINES = ["fastokens", "tokenizers", "transformers"]
EDGES = ["a</s>b", "<s>", "</s></s>", "<|endoftext|>", " ", "\n", "\x00", "\ufeff", "a\r\n\r\nb", "x" * 5000, "\u0301a"]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return [*natural_texts(200), *random_texts(200), *EDGES]


@functools.cache
def true_ids(name: str) -> list[list[int]]:
    """The ids that a tokenizer itself gives for each of the texts, with one BOS where it puts one, and EOS."""
    tokenizer = made(name)
    before = [tokenizer.bos_token_id] if name in BOS else []
    bare = [text.removeprefix("<s>") if before else text for text in (*natural_texts(200), *random_texts(200), *EDGES)]
    documents = tokenizer(bare, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return [[*before, *document, tokenizer.eos_token_id] for document in documents]


@pytest.mark.parametrize("engine", [None, *ENGINES])
@pytest.mark.parametrize("name", MAKERS)
def test_ids_equal_those_of_transformers_on_every_document(name: str, engine: str | None, texts: list[str]) -> None:
    if engine == "fastokens" and name not in FAST:
        with pytest.raises(SettingError, match="tokenizer_engine: fastokens does not give the ids of tokenizer"):
            describe(made(name), name=name, engine=engine)
        return
    spec = describe(made(name), name=name, engine=engine)
    assert spec.engine == (engine or ("fastokens" if name in FAST else "tokenizers"))
    ids, lengths = DocumentEncoder(spec).encode(texts)
    documents = np.split(ids, np.cumsum(lengths)[:-1])
    for text, found, wanted in zip(texts, documents, true_ids(name), strict=True):
        assert found.tolist() == wanted, text


def test_sequences_are_cut_from_the_ids_of_transformers(texts: list[str], tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("extra", "dtype"), [(0, "uint16"), (32_509, "uint16"), (65_277, "uint16"), (65_278, "uint32")]
)
def test_the_last_id_of_any_vocabulary_is_stored_whole(extra: int, dtype: str) -> None:
    tokenizer = byte_tokenizer(extra)  # 259; 32,768; 65,536; 65,537
    last = tokenizer.convert_ids_to_tokens(len(tokenizer) - 1)
    spec = describe(tokenizer, name="x", eos_token=last)
    ids, lengths = DocumentEncoder(spec).encode(["ab"])
    assert (ids.tolist(), lengths.tolist(), ids.dtype) == ([100, 101, 258 + extra], [3], dtype)


def test_an_eos_of_id_0_ends_each_document(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = "<pad>"
    source = jsonl(tmp_path / "a.jsonl", ["ab", "c"])
    assert first_ids(tokenizer, source, tmp_path / "out", 5) == [100, 101, 0, 102, 0]


def test_code_that_comes_with_a_tokenizer_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    settings = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(SettingError, match=r"tokenizer '.*' cannot be loaded"):
        write_shards(input="x", tokenizer=str(tmp_path), output=tmp_path / "out")
    assert not (tmp_path / "ran").exists()


class Wrong:
    """`tokenizers`, but for one text, which loses its last id."""

    def __init__(self, right: Engine, text: str) -> None:
        self.right, self.text = right, text

    def encode(self, texts: list[str]) -> Encoded:
        """See Engine."""
        ids = [self.right.encode([text])[0] for text in texts]
        return flatten([found[:-1] if text == self.text else found for text, found in zip(texts, ids, strict=True)])


@pytest.mark.parametrize("place", [0, 5])
def test_a_fast_engine_that_disagrees_stops_the_run_with_the_document(place: int) -> None:
    right = TokenizersEngine(describe(byte_tokenizer(), name="x"))
    texts = [f"document {number}" for number in range(1000)]
    engine = CheckedEngine(Wrong(right, texts[place]), right)
    with pytest.raises(InputError, match=rf"different ids for 'document {place}'; write with --tokenizer_engine tok"):
        engine.encode(texts)


def test_a_fast_engine_is_compared_on_every_character_the_first_time_it_comes() -> None:
    right = TokenizersEngine(describe(byte_tokenizer(), name="x"))
    texts = ["x" * 10_000, *["common é"] * 1000, "rare \U0001f98a", "common é"]
    CheckedEngine(Wrong(right, "never"), right).encode(texts)
    with pytest.raises(InputError, match="different ids for 'rare \U0001f98a'"):
        CheckedEngine(Wrong(right, texts[-2]), right).encode(texts)


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
    with pytest.raises(SettingError, match=r"tokenizer '.*nowhere': no such folder"):
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
