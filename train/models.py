"""The model to train, and whether it fits the data (G9)."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from shard_writer.errors import SetError, SettingError
from shard_writer.manifest import DatasetInfo, Manifest
from shard_writer.pretrained import load_tokenizer
from shard_writer.show import check_tokenizer
from train.arguments import ModelArguments
from train.world import is_main_process

_ROUNDING = 32  # units in the last place
_log = logging.getLogger("train")


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


def check_model(manifest: Manifest, model: Any) -> None:
    """Raises SetError when the model's embedding or its positions are too few for the data."""
    tokenizer, embeddings = manifest.info.tokenizer, model.get_input_embeddings().num_embeddings
    if tokenizer.vocab_length > embeddings:
        raise SetError(
            f"{manifest.shards[0].file_name} … of {manifest.root}: ids up to {tokenizer.vocab_length - 1} by tokenizer "
            f"{tokenizer.name!r} ({tokenizer.vocab_length} tokens), but the model embeds {embeddings}: max id {tokenizer.vocab_length - 1} "
            f">= {embeddings}; use the model of that tokenizer, or model.resize_token_embeddings"
        )
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and manifest.info.seq_length > positions:
        raise SetError(
            f"{manifest.root}: sequences of {manifest.info.seq_length} tokens, but the model has {positions} positions "
            "(max_position_embeddings); write the set with a smaller --seq_length or use another model"
        )


def keep_documents_apart(model: Any) -> None:
    """Set a model up for rows of several documents, and try that it keeps these apart.

    Recurrent and convolutional layers, and attention that takes no notice of positions, leak without a word. Raises
    SettingError when they do.
    """
    model.config.use_cache = False  # with a cache, attention would not stop at documents
    positions = torch.tensor([[0, 1, 2, 0, 1]])
    if _sees(model, [1, 2, 3, 4, 5], [6, 7, 8, 4, 5], slice(3, 5), position_ids=positions):
        raise SettingError(
            f"separate_documents: in {type(model).__name__} tokens of one document reach those of the next, whatever their "
            "position_ids; leave it out, or use a model whose attention goes by positions, such as llama or gpt2"
        )


def check_causal(model: Any) -> None:
    """Raises SettingError when a model sees the token that it is to predict, as encoders do."""
    if _sees(model, [1, 2, 3, 4, 5], [1, 2, 3, 4, 6], slice(0, 4)):
        raise SettingError(
            f"model: {type(model).__name__} sees the tokens that it is to predict, needed: a causal language model; set "
            '"is_decoder": true in its configuration, or take another'
        )


def _sees(model: Any, one: list[int], other: list[int], part: slice, **inputs: torch.Tensor) -> bool:
    """Whether the logits of a part that two rows have in common differ by more than rounding; False where that cannot be tried."""
    device, was_training = next(model.parameters()).device, model.training
    inputs = {name: value.to(device) for name, value in inputs.items()}
    needs_half = str(getattr(model.config, "_attn_implementation", "")).startswith("flash")
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=needs_half):
            rows = (torch.tensor([row], device=device) for row in (one, other))
            first, second = (model(input_ids=row, use_cache=False, **inputs).logits[0, part] for row in rows)
            rounding = _ROUNDING * torch.finfo(first.dtype).eps * first.abs().max()
            return bool((first - second).abs().max() > rounding)
    except Exception as error:  # such as weights that are not all in this process: training will tell
        _log.debug("not tried on this %s, what its tokens see: %s", type(model).__name__, error)
        return False
    finally:
        model.train(was_training)


def check_same_tokenizer(training: Manifest, validation: Manifest) -> None:
    """Raises SetError when the two sets were written with different tokenizers."""
    mine, other = training.info.tokenizer, validation.info.tokenizer
    if mine.fingerprint != other.fingerprint:
        raise SetError(
            f"{validation.root}: written with tokenizer {other.name!r} ({other.fingerprint}), but {training.root}, on which the model is "
            f"trained, with {mine.name!r} ({mine.fingerprint}); write the validation set with the tokenizer of the training set"
        )


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
