"""A tokenizer from tokenizer.json alone is used only where it is what transformers would give (G9)."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from tests.helpers.tokenizers import MAKERS, byte_tokenizer, made
from tests.helpers.written import contents, jsonl
from tokentar import write_shards
from tokentar.shard_writer.format.dataset_info import TokenizerInfo
from tokentar.shard_writer.tokenizing.describe import describe
from tokentar.shard_writer.tokenizing.spec import fingerprint
from tokentar.shard_writer.tokenizing.tokenizer_file import FileTokenizer, load_for_reading, load_for_writing

Change = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The byte tokenizer with two added tokens, one of them special, as a folder."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<plain>", special=False), AddedToken("<marked>", special=True)])
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def by_transformers(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def of_file(folder: Path) -> FileTokenizer:
    found = load_for_writing(str(folder))
    assert found is not None
    return found


def config(**values: Any) -> Change:
    """Sets keys of tokenizer_config.json."""
    return lambda folder: edit(folder / "tokenizer_config.json", lambda content: content.update(values))


def definition(change: Callable[[dict[str, Any]], object]) -> Change:
    """Changes tokenizer.json."""
    return lambda folder: edit(folder / "tokenizer.json", change)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_gives_all_that_transformers_gives(name: str, tmp_path: Path) -> None:
    made(name).save_pretrained(tmp_path)
    theirs, ours = by_transformers(tmp_path), of_file(tmp_path)
    assert describe(ours, name="x") == describe(theirs, name="x")
    assert [ours.decode([number]) for number in range(500)] == [theirs.decode([number]) for number in range(500)]


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: None,
        config(tokenizer_class="PreTrainedTokenizerFast"),
        config(is_local=True, local_files_only=False, model_max_length=512, clean_up_tokenization_spaces=True),
        config(pad_token=None, unk_token="<pad>", mask_token="<marked>"),
        config(eos_token="<marked>"),
        config(bos_token=None),
        lambda folder: folder.rename(folder.with_name("qwen2-llama")),
    ],
    ids=["as saved", "old class", "harmless keys", "other special tokens", "added EOS", "no BOS", "name of a model"],
)
def test_settings_without_effect_on_ids_leave_a_file_sure(change: Change, folder: Path) -> None:
    change(folder)
    (folder,) = folder.parent.iterdir()
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert describe(of_file(folder), name="x") == describe(by_transformers(folder), name="x")


@pytest.mark.parametrize(
    "change",
    [
        config(tokenizer_class="LlamaTokenizer"),
        config(tokenizer_class=None),
        config(auto_map={"AutoTokenizer": ["evil.Evil", None]}),
        config(add_bos_token=True),
        config(added_tokens_decoder={"1": {"content": "<s>"}}),
        config(extra_special_tokens=["<new>"]),
        config(fast_tokenizer_files=["tokenizer.4.0.json"]),
        config(eos_token="<new>"),
        config(eos_token="<plain>"),
        config(eos_token={"content": "</s>", "__type": "AddedToken"}),
        config(image_token="<image>"),
        config(fix_mistral_regex=True),
        lambda folder: (folder / "tokenizer_config.json").write_text("{"),
        lambda folder: (folder / "tokenizer_config.json").write_text("[]"),
        lambda folder: (folder / "tokenizer_config.json").unlink(),
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
        definition(lambda content: content.update(truncation={"max_length": 4, "strategy": "LongestFirst", "stride": 0})),
        definition(lambda content: content.update(post_processor=None)),
        definition(lambda content: content["added_tokens"][3].update(id=7000)),
        lambda folder: (folder / "config.json").write_text('{"model_type": "llama"}'),
        lambda folder: (folder / "special_tokens_map.json").write_text('{"eos_token": "<pad>"}'),
        lambda folder: (folder / "added_tokens.json").write_text('{"<more>": 300}'),
        lambda folder: (folder / "tekken.json").write_text("{}"),
        shutil.rmtree,
    ],
)  # fmt: skip
def test_whatever_may_change_ids_is_left_to_transformers(change: Change, folder: Path) -> None:
    change(folder)
    assert load_for_writing(str(folder)) is None


def test_a_set_is_the_same_to_the_byte_by_the_file_and_by_transformers(folder: Path, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["some text", "<plain> and </s>"] * 20)
    for output, tokenizer in (("file", of_file(folder)), ("transformers", str(folder))):
        write_shards(input=source, tokenizer=tokenizer, output=tmp_path / output, seq_length=16, workers=0)
    assert contents(tmp_path / "file") == contents(tmp_path / "transformers")


def test_a_finished_set_takes_any_file_with_its_fingerprint(folder: Path) -> None:
    config(tokenizer_class="Unknown", add_bos_token=True)(folder)  # would not do for writing
    print_of_set = fingerprint(by_transformers(folder), 2)
    info = TokenizerInfo(name="x", fingerprint=print_of_set, vocab_length=261, eos_token_id=2)
    found = load_for_reading(str(folder), info)
    assert found is not None
    assert found.decode([100, 101, 2]) == "ab</s>"
    other = TokenizerInfo(name="x", fingerprint=fingerprint(found, 1), vocab_length=261, eos_token_id=2)
    assert load_for_reading(str(folder), other) is None
    config(clean_up_tokenization_spaces=True)(folder)
    assert load_for_reading(str(folder), info) is None
    assert load_for_reading(str(folder / "nowhere"), info) is None
