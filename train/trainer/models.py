"""The model to train, and whether it fits the data (G9)."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format.dataset_info import DatasetInfo
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.shard_writer.tokenizing.loading import check_tokenizer, load_tokenizer
from tokentar.train.distributed.world import is_main_process
from tokentar.train.trainer.arguments import ModelArguments

_log = logging.getLogger(__name__)


def build_model(arguments: ModelArguments, info: DatasetInfo) -> PreTrainedModel:
    """The model that the flags ask for. A new one gets the vocabulary and the EOS of the data where its configuration names none."""
    options = {"attn_implementation": arguments.attn_implementation} if arguments.attn_implementation else {}
    if arguments.model_name_or_path is not None:
        try:
            model = AutoModelForCausalLM.from_pretrained(arguments.model_name_or_path, **options)
        except (OSError, ValueError, ImportError) as error:
            reason = str(error).splitlines()[0]
            raise SettingError(
                f"model_name_or_path: {arguments.model_name_or_path!r} cannot be loaded: {reason}"
            ) from None
    else:
        config = _new_config(str(arguments.model_config), info)
        try:
            model = AutoModelForCausalLM.from_config(config, **options)  # type: ignore[no-untyped-call]
        except (ValueError, ImportError) as error:
            raise SettingError(f"model_config: {' '.join(str(error).split())}") from None
    built: PreTrainedModel = model
    built.loss_type = built.loss_type or "ForCausalLM"  # what it uses anyway, with a notice, as GPT-2 names none
    return built


def _new_config(text: str, info: DatasetInfo) -> Any:
    values = {
        "vocab_size": info.tokenizer.vocab_length,
        "eos_token_id": info.tokenizer.eos_token_id,
        "bos_token_id": None,
    } | _read_config(text)
    kind = values.pop("model_type", None)
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise SettingError(
            f"model_config: model_type is {kind!r}, needed: a causal language model of transformers, such as gpt2 or llama"
        )
    try:
        config = AutoConfig.for_model(kind, **values)
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise SettingError(f"model_config: {' '.join(str(error).split())}") from None
    unknown = sorted(set(values) - set(vars(type(config)())) - set(config.attribute_map) - {"vocab_size"})
    if unknown:
        raise SettingError(
            f"model_config: {kind} knows no {', '.join(unknown)}; its keys are those of {type(config).__name__}"
        )
    return config


def _read_config(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(Path(text).read_text())
    except OSError as error:
        raise SettingError(
            f"model_config: {text}: {error.strerror}; give a file, or JSON that starts with {{"
        ) from None
    except (ValueError, yaml.YAMLError) as error:
        raise SettingError(f"model_config: neither JSON nor YAML: {error}") from None
    if not isinstance(values, dict):
        raise SettingError(f"model_config: a mapping wanted, found {type(values).__name__}")
    return values


def find_tokenizer(manifest: Manifest, model_name: str | None) -> PreTrainedTokenizerBase | None:
    """The tokenizer to save beside the model: the model's own, or the one that wrote the set where it can be found.

    Raises SetError when it is not the one that wrote the set.
    """
    for name in (model_name, manifest.info.tokenizer.name):
        if name and (not os.path.isdir(name) or os.path.isfile(os.path.join(name, "tokenizer_config.json"))):
            try:
                tokenizer: PreTrainedTokenizerBase = load_tokenizer(name)
            except SettingError:
                continue  # the model comes without one, or the one that wrote the set is not on this machine
            check_tokenizer(manifest, tokenizer, name)
            return tokenizer
    if is_main_process():
        _log.info(
            "tokenizer %r, which wrote the set, is neither here nor on the hub: none is saved beside the model; the ids are what they are",
            manifest.info.tokenizer.name,
        )
    return None
