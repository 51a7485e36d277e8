"""Tokenizers by name: folders of this machine, repositories of the Hugging Face Hub, and the cache of those."""

import os
from typing import Any

from shard_writer.errors import SettingError

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
            "not on this machine, and the hub has none or does not answer"
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
