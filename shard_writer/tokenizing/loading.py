"""Tokenizers by name: folders of this machine, repositories of the Hugging Face Hub, and the cache of those."""

import os
import sys
from typing import Any

from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.shard_writer.tokenizing.spec import fingerprint

_HUB_SECONDS = 5


def load_tokenizer(name: str) -> Any:
    """A `transformers` tokenizer. Raises SettingError when there is none of this name.

    The hub is asked once whether it has it: `transformers` asks one that is out of reach again and again, for most of a minute.
    """
    from transformers import AutoTokenizer

    is_here = os.path.exists(name)
    if not is_here and _is_path(name):
        raise SettingError(f"tokenizer {name!r}: no such folder")
    only_cached = not is_here and not _is_on_hub(name)
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False, local_files_only=only_cached)
    except (OSError, ValueError, KeyError) as error:
        why = (
            f"no folder {os.path.abspath(name)}, and the hub has none of this name or does not answer"
            if only_cached
            else str(error).splitlines()[0]
        )
        raise SettingError(f"tokenizer {name!r} cannot be loaded: {why}") from None


def _is_path(name: str) -> bool:
    """Whether a name can be no repository's, which are NAME or USER/NAME."""
    return name.count("/") > 1 or name.startswith(("/", ".", "~"))


def _is_on_hub(name: str) -> bool:
    """Whether the hub says that it has a repository of this name."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    of_its_library: Any = HfHubHTTPError.__bases__[0]  # whichever that is
    try:
        HfApi().model_info(name, timeout=_HUB_SECONDS)
    except (of_its_library, OSError, ValueError):
        return False
    return True


def load_matching_tokenizer(manifest: Manifest, name: str | None = None) -> Any:
    """The tokenizer of a set, by `name` or by the one in dataset.json. Raises SetError when it is another one (G9)."""
    name = name or manifest.info.tokenizer.name
    if not name:
        raise SetError(
            f"{manifest.root}: written with a tokenizer that had no name; name the folder of it with --tokenizer"
        )
    tokenizer = load_tokenizer(name)
    check_tokenizer(manifest, tokenizer, name)
    return tokenizer


def check_tokenizer(manifest: Manifest, tokenizer: Any, name: str) -> None:
    """Raises SetError when `tokenizer` is not the one that wrote the set."""
    info = manifest.info.tokenizer
    seen = fingerprint(tokenizer, info.eos_token_id)
    if seen != info.fingerprint:
        raise SetError(
            f"tokenizer {name!r}: fingerprint {seen} ({len(tokenizer)} tokens), but {manifest.root} was written with {info.name!r}, "
            f"fingerprint {info.fingerprint} ({info.vocab_length} tokens); use that one, or write the set again"
        )


def load_transformers_without_torch() -> None:
    """Tokenizers do without torch, whose import takes longer than all the rest of the start.

    transformers looks for it once; what else wants it later still finds it.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # or it says that it has no models
    if "torch" in sys.modules or "transformers" in sys.modules:  # the latter knows by now whether there is torch
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        from transformers import AutoTokenizer  # noqa: F401
    finally:
        del sys.modules["torch"]
