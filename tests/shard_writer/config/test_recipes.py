"""Recipes and flags: one set of names, flags override, what is unknown is an error that names the nearest."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import pytest

from tokentar import SettingError
from tokentar.shard_writer.config import recipes
from tokentar.shard_writer.writing.arguments import WriteArguments

NEEDED = ["--input", "a.jsonl", "--tokenizer", "t", "--output", "out"]


def parse(*argv: str) -> WriteArguments:
    (arguments,) = recipes.parse([WriteArguments], "write", argv, "write", "")
    assert isinstance(arguments, WriteArguments)
    return arguments


def recipe(tmp_path: Path, text: str) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return str(path)


def test_the_list_of_flags_is_this_one() -> None:
    names = (
        "input tokenizer output seq_length text_column name num_shards shuffle seed workers engine ray_address validation_fraction "
        "bad_documents input_format dataset_config dataset_split eos_token add_bos tokenizer_engine packing "
        "provenance append spool_dir overwrite"
    )
    assert [field.name for field in fields(WriteArguments)] == names.split()


def test_a_recipe_and_flags_say_the_same(tmp_path: Path) -> None:
    text = """
        write:
          input: [a.jsonl, "b/**/*.txt"]
          tokenizer: t
          output: out
          seq_length: 128
          num_shards: null
          shuffle: false
          add_bos: true
          validation_fraction: 1.0e-2
          overwrite: true
        train: {anything: at all}
    """
    flags = "--input a.jsonl b/**/*.txt --tokenizer t --output out --seq_length 128 --shuffle false --add_bos true"
    assert parse("--config", recipe(tmp_path, text)) == parse(
        *flags.split(), "--validation_fraction", "0.01", "--overwrite"
    )


@dataclass
class Saving:
    save_strategy: Literal["no", "steps"] = "steps"


def test_a_bare_no_is_no_though_yaml_takes_it_for_false(tmp_path: Path) -> None:
    path = recipe(tmp_path, "train: {save_strategy: no}")
    assert recipes.parse([Saving], "train", ["--config", path], "train", "") == (Saving("no"),)


def test_flags_override_a_recipe_wherever_they_stand(tmp_path: Path) -> None:
    path = recipe(tmp_path, "write: {input: [a, b], tokenizer: t, output: out, seed: 1, overwrite: true}")
    for argv in (["--seed", "2", "--config", path], [f"--config={path}", "--seed=2"]):
        assert parse(*argv, "--input", "c", "--overwrite", "false") == parse(
            "--input", "c", "--tokenizer", "t", "--output", "out", "--seed", "2"
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("write: {tokeniser: t}", r"unknown key in .*recipe\.yaml, section write: 'tokeniser'; nearest: tokenizer"),
        ("write: {seq_len: 5}", r"unknown key .*'seq_len'; nearest: seq_length"),
        ("write: {config: x}", r"unknown key .*'config'"),
        ("writ: {}\nwrite: {seed: 1}", r"unknown section in .*recipe\.yaml: 'writ'; nearest: write"),
        ("train: {seed: 1}", r"recipe\.yaml has no section `write:` with keys in it"),
        ("write:", "has no section `write:` with keys in it"),
        ("- a", "has no section `write:` with keys in it"),
        ("write: {a: [}", r"recipe\.yaml is not YAML: "),
        (
            "write: {input: a, seed: 1, input: b}",
            r"key 'input' stands twice .*recipe\.yaml|recipe\.yaml is .*key 'input' stands twice",
        ),
        ("write: {input: é\x00}", r"recipe\.yaml is not YAML: "),
        ("", "has no section `write:`"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=message):
        parse("--config", recipe(tmp_path, text), *NEEDED)


def test_a_recipe_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_bytes(b"write: {input: caf\xe9}")
    with pytest.raises(SettingError, match=r"recipe\.yaml is not YAML: .*can't decode byte 0xe9"):
        parse("--config", str(tmp_path / "recipe.yaml"), *NEEDED)


def test_home_is_found_where_no_shell_has_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    path = recipe(tmp_path, "write: {input: [~/a.jsonl, b~/c], tokenizer: ~/t}")
    found = parse("--config", path, "--output=~/out")
    assert (found.input, found.tokenizer, found.output) == (["/home/me/a.jsonl", "b~/c"], "/home/me/t", "/home/me/out")


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"config: .*none\.yaml: No such file"):
        parse("--config", str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("flag", "nearest"), [("--seqlength", "seq_length"), ("--worker=2", "workers"), ("--num-shard", "num_shards")]
)
def test_an_unknown_flag_names_the_nearest(flag: str, nearest: str) -> None:
    with pytest.raises(SettingError, match=rf"unknown flag '{flag.split('=')[0]}'; nearest: .*{nearest}"):
        parse(*NEEDED, flag, "1")


def test_a_word_that_belongs_to_no_flag_is_refused() -> None:
    with pytest.raises(SettingError, match="'5' belongs to no flag"):
        parse(*NEEDED, "--seed", "4", "5")


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("seq_length", "0", "seq_length: 0, needed: at least 1"),
        ("num_shards", "0", "num_shards: 0, needed: at least 1"),
        ("workers", "-1", "workers: -1, needed: 0 or more"),
        ("validation_fraction", "1", r"validation_fraction: 1\.0, needed: at least 0 and below 1"),
        ("validation_fraction", "nan", "validation_fraction: nan, needed: at least 0 and below 1"),
        ("name", "a/b", "name: 'a/b', needed: letters, digits, - and _ only"),
        ("name", "../a", "name: .*needed"),
        ("name", "a.b", "name: .*needed"),
        ("name", "", "name: .*needed"),
        ("name", "a" * 51, "name: 'a+', needed: letters, digits, - and _ only, 50 at most"),
        ("output", "", "output: '', needed: a folder or URL"),
    ],
)
def test_a_value_out_of_range_is_named_with_what_is_needed(flag: str, value: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse(*NEEDED, f"--{flag}={value}")


def test_a_split_named_validation_cannot_have_a_validation_split() -> None:
    with pytest.raises(SettingError, match="name: 'validation'"):
        parse(*NEEDED, "--name", "validation", "--validation_fraction", "0.1")
    assert parse(*NEEDED, "--name", "validation").name == "validation"


@pytest.mark.parametrize("argv", [["--seed", "x"], ["--engine", "slurm"], ["--bad_documents", "maybe"], ["--input"]])
def test_a_value_of_the_wrong_kind_is_refused_with_the_flag_and_not_with_pages_of_usage(argv: list[str]) -> None:
    with pytest.raises(SettingError, match=rf"argument {argv[0]}.*: .*; --help lists all flags"):
        parse(*NEEDED, *argv)
