"""Recipes and flags: YAML with the sections `write:` and `train:`, keys as the flags, flags override, an unknown key is an error.

A recipe becomes the flags it stands for, put before those that were typed, so one parser
(`transformers.HfArgumentParser`) converts and checks both alike.
"""

import difflib
import json
import os
import sys
from argparse import Action, ArgumentDefaultsHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NoReturn

import yaml

from tokentar.shard_writer.errors import SettingError, TokentarError

SECTIONS = ("write", "train")
OVERRIDDEN = {  # by a flag that is typed: keys of a recipe that would say the same, or something of what it replaces
    "shards": {"sources", "stages"},
    "sources": {"shards", "stages"},
    "max_steps": {"max_tokens"},
    "max_tokens": {"max_steps"},
    "model_name_or_path": {"model_config"},
    "model_config": {"model_name_or_path"},
}


def parse(
    types: Sequence[type],
    section: str,
    argv: Sequence[str],
    prog: str,
    description: str,
    defaults: Mapping[str, Any] | None = None,
) -> tuple[Any, ...]:
    """One instance of each dataclass of `types`, from the recipe that `--config` names and the other flags of `argv`.

    defaults: values of flags that are not given, in place of those of the dataclasses.

    Raises SettingError for a recipe that cannot be read and for keys and flags that do not exist, with the nearest that
    do.
    """
    parser = _parser_class()(
        list(types),
        prog=prog,
        usage=f"{prog} [--config RECIPE] [--flag value …]",
        description=description,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.error = _refuse
    parser.set_defaults(**defaults or {})
    parser.add_argument(
        "--config",
        metavar="RECIPE",
        help=f"YAML recipe; its section `{section}:` holds flags, which those typed override",
    )
    known = {
        option.removeprefix("--")
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    config, typed = _take_config(list(argv))
    named_no = {action.dest for action in parser._actions if "no" in (action.choices or ())}
    given = {word.removeprefix("--").split("=")[0] for word in typed if word.startswith("--")}
    recipe = _recipe_flags(Path(config), section, known, named_no, given) if config else []
    for word in typed:
        if word.startswith("--") and word.removeprefix("--").split("=")[0] not in known:
            raise _unknown(word.split("=")[0], known, "flag")
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(
            list(map(_at_home, recipe + typed)), look_for_args_file=False, return_remaining_strings=True
        )
    except TokentarError:
        raise
    except (ValueError, ImportError, OSError) as error:  # what TrainingArguments refuses
        raise SettingError(" ".join(str(error).split())) from None
    if unknown:
        raise SettingError(f"{unknown[0]!r} belongs to no flag; --help lists them")
    return tuple(parsed[: len(types)])


def _parser_class() -> Any:
    """transformers.HfArgumentParser, from its own file where transformers is not imported yet: that takes longer than a small writing."""
    if "transformers" in sys.modules:
        from transformers import HfArgumentParser

        return HfArgumentParser
    package = find_spec("transformers")
    assert package is not None
    assert package.origin is not None
    spec = spec_from_file_location("transformers_hf_argparser", Path(package.origin).with_name("hf_argparser.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for themselves
    spec.loader.exec_module(module)
    return module.HfArgumentParser


def _at_home(word: str) -> str:
    """A word with its ~ expanded, which no shell does in a recipe and not every one behind `--flag=`."""
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{flag}{equals}{os.path.expanduser(value)}" if value.startswith("~/") else word


def _refuse(message: str) -> NoReturn:
    """Instead of argparse's way out, which prints more than a hundred flags before the reason."""
    raise SettingError(f"{message}; --help lists all flags")


class _Help(ArgumentDefaultsHelpFormatter):
    """Shows a default where there is one and the text does not already tell it."""

    def _get_help_string(self, action: Action) -> str | None:
        told = action.default is None or "default" in (action.help or "")
        return action.help if told else super()._get_help_string(action)


def _take_config(argv: list[str]) -> tuple[str | None, list[str]]:
    """The recipe's path and the other flags."""
    for i, flag in enumerate(argv):
        if flag.startswith("--config="):
            return flag.removeprefix("--config="), argv[:i] + argv[i + 1 :]
        if flag == "--config" and i + 1 < len(argv):
            return argv[i + 1], argv[:i] + argv[i + 2 :]
    return None, argv


def read_section(path: Path, section: str) -> dict[str, Any]:
    """The keys of a section of a recipe. Raises SettingError for a file that is no recipe with such a section."""
    try:
        recipe = yaml.load(path.read_text("utf-8"), _OneOfEachKey)
    except OSError as error:
        raise SettingError(f"config: {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingError(f"config: {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(recipe, dict) or not isinstance(recipe.get(section), dict):
        raise SettingError(f"config: {path} has no section `{section}:` with keys in it")
    for key in recipe:
        if key not in SECTIONS:
            raise _unknown(str(key), set(SECTIONS), f"section in {path}:")
    return {str(key): value for key, value in recipe[section].items()}


def overridden(typed: set[str]) -> set[str]:
    """The keys of a recipe that have no effect beside the flags that were typed."""
    return typed.union(*(OVERRIDDEN.get(name, set()) for name in typed))


def _recipe_flags(path: Path, section: str, known: set[str], named_no: set[str], typed: set[str]) -> list[str]:
    """The flags that a section stands for, but for those typed; those of `named_no` have a value `no`, which YAML takes for false."""
    recipe, ignored = read_section(path, section), overridden(typed)
    for key in recipe:
        if key not in known or key == "config":
            raise _unknown(key, known, f"key in {path}, section {section}:")
    values = {key: "no" if value is False and key in named_no else value for key, value in recipe.items()}
    return [word for key, value in values.items() if key not in ignored for word in _as_flag(key, value)]


class _OneOfEachKey(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As SafeLoader does, once the keys are known to differ."""
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {name!r} stands twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def _as_flag(key: str, value: Any) -> Iterator[str]:
    """`--key value …` of one line of a recipe; null is as if the line were not there."""
    if value is None:
        return
    if isinstance(value, list):
        yield f"--{key}"
        yield from map(str, value)
    elif isinstance(value, dict):
        yield f"--{key}={json.dumps(value)}"
    else:
        yield f"--{key}={str(value).lower() if isinstance(value, bool) else value}"


def _unknown(name: str, known: set[str], what: str) -> SettingError:
    near = difflib.get_close_matches(name.removeprefix("--"), sorted(known), n=3, cutoff=0.5)
    return SettingError(
        f"unknown {what} {name!r}" + (f"; nearest: {', '.join(near)}" if near else "") + "; --help lists all"
    )
