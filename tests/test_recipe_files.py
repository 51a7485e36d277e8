"""The recipes of the project parse, and their README has every key with the text of --help.

`python -m tests.test_recipe_files` writes the tables of the README anew.
"""

import re
from dataclasses import MISSING, fields
from typing import Any

import pytest
from transformers import TrainingArguments

from tests.torchrun.start import ROOT
from tokentar.shard_writer.config import recipes
from tokentar.shard_writer.writing.arguments import WriteArguments
from tokentar.train.trainer.arguments import DataArguments, ModelArguments

README = ROOT / "recipes" / "README.md"
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
SECTIONS: dict[str, list[Any]] = {"write": [WriteArguments], "train": [DataArguments, ModelArguments]}
NEEDED = ["--input", "x", "--tokenizer", "x"]


def table(types: list[Any]) -> str:
    """The keys of some dataclasses as a Markdown table."""
    rows = [
        f"| `{field.name}` | {'needed' if field.default is MISSING else _shown(field.default)} | {field.metadata['help']} |"
        for each in types
        for field in fields(each)
    ]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows]) + "\n"


def _shown(default: Any) -> str:
    return "" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"


@pytest.mark.parametrize("section", SECTIONS)
def test_the_readme_of_the_recipes_has_every_key(section: str) -> None:
    assert table(SECTIONS[section]) in README.read_text(), "run python -m tests.test_recipe_files"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_parses_and_is_described(path: Any) -> None:
    assert f"`{path.name}`" in README.read_text()
    (write,) = recipes.parse([WriteArguments], "write", ["--config", str(path), *NEEDED], "", "")
    on_cpu = ["--bf16", "false", "--use_cpu", "true", "--config", str(path)]
    argv = on_cpu if "model_config" in path.read_text() else [*on_cpu, "--model_name_or_path", "x"]
    data, _, args = recipes.parse([DataArguments, ModelArguments, TrainingArguments], "train", argv, "", "")
    assert write.output == data.data
    assert args.output_dir


if __name__ == "__main__":
    text = README.read_text()
    for name, types in SECTIONS.items():
        text = re.sub(
            rf"(## Keys of `{name}:`\n(?:\n[^|\n][^\n]*\n)*\n)(?:\|.*\n|KEYS_\w+\n)+", rf"\g<1>{table(types)}", text
        )
    README.write_text(text)
