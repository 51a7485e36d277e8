"""From a `transformers` tokenizer to a TokenizerSpec: its EOS, what it puts around a document, the fastest engine that gives its ids.

Engines are tried in the order fastokens, tokenizers, transformers; each is used only when the one before it does not load
the tokenizer or disagrees with it on the probes. Text that looks like a special token is text.
"""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format.dataset_info import TokenizerInfo
from tokentar.shard_writer.tokenizing.encoder import ENGINES
from tokentar.shard_writer.tokenizing.engine_check import Encoded
from tokentar.shard_writer.tokenizing.spec import PROBES, TokenizerSpec, fingerprint, flatten, plain_ids


def describe(
    tokenizer: Any, *, name: str, eos_token: str | None = None, add_bos: bool | None = None, engine: str | None = None
) -> TokenizerSpec:
    """Everything about a `transformers` tokenizer that writing needs. Raises SettingError when it has no EOS."""
    eos = _eos_id(tokenizer, name, eos_token)
    prefix, suffix = _surroundings(tokenizer)
    bos = tokenizer.bos_token_id
    if add_bos is False:
        prefix = ()
    elif add_bos and (bos is None or not prefix):
        if bos is None:
            raise SettingError(
                f"add_bos: tokenizer {name!r} has no BOS token; leave add_bos out or choose another tokenizer"
            )
        prefix = (bos,)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    spec = TokenizerSpec(
        info=TokenizerInfo(
            name=name, fingerprint=fingerprint(tokenizer, eos), vocab_length=len(tokenizer), eos_token_id=eos
        ),
        engine="transformers",
        definition=backend.to_str() if backend is not None else "",
        pickled=b"" if backend is not None else pickle.dumps(tokenizer),
        prefix=prefix,
        suffix=(*suffix, eos) if suffix[-1:] != (eos,) else suffix,
        bos_text=tokenizer.bos_token if bos is not None and bos in prefix else "",
    )
    return _with_engine(spec, tokenizer, engine)


def _eos_id(tokenizer: Any, name: str, eos_token: str | None) -> int:
    if eos_token is not None:
        found = tokenizer.get_vocab().get(eos_token)
        if found is None:
            raise SettingError(f"eos_token: {eos_token!r} is not in the vocabulary of tokenizer {name!r}")
        return int(found)
    if tokenizer.eos_token_id is None:
        raise SettingError(
            f"tokenizer {name!r} has no EOS token, so documents would run into one another; set tokenizer.eos_token, "
            "or name one of its tokens with --eos_token"
        )
    return int(tokenizer.eos_token_id)


def _surroundings(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer itself puts before and behind a text."""
    bare = plain_ids(tokenizer, PROBES[0])
    full: list[int] = tokenizer(PROBES[0], add_special_tokens=True, split_special_tokens=True)["input_ids"]
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise SettingError(
        f"the tokenizer turns {PROBES[0]!r} into {bare} without and {full} with special tokens: no common part"
    )


def _with_engine(spec: TokenizerSpec, tokenizer: Any, wanted: str | None) -> TokenizerSpec:
    """The spec with the fastest engine that gives the tokenizer's own ids on every probe, or with the engine asked for."""
    truth = flatten([plain_ids(tokenizer, probe) for probe in PROBES])
    names = [wanted] if wanted else ["fastokens", "tokenizers"] if spec.definition else []
    for name in names:
        if _agrees(name, spec, truth):
            return replace(spec, engine=name)
    if wanted and wanted != "transformers":
        raise SettingError(
            f"tokenizer_engine: {wanted} does not give the ids of tokenizer {spec.info.name!r}; leave it out"
        )
    return replace(spec, pickled=pickle.dumps(tokenizer))


def _agrees(name: str, spec: TokenizerSpec, truth: Encoded) -> bool:
    try:
        ids, offsets = ENGINES[name](spec).encode(list(PROBES))
    except Exception:  # any refusal to load or encode means: not with this engine
        return False
    return np.array_equal(ids, truth[0]) and np.array_equal(offsets, truth[1])
