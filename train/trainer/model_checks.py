"""Whether a model fits the data and reads it as it should (G9)."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.shard_writer.format.manifest import Manifest

_log = logging.getLogger(__name__)
_ROUNDING = 32  # units in the last place


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
    """Whether the logits of a part that two rows have in common differ by more than rounding; False where that cannot be tried.

    Weights of half precision are widened for the while: bfloat16 would round a leak of one part in a thousand away.
    """
    was_training, own = model.training, str(getattr(model.config, "_attn_implementation", ""))
    # flash attention takes half precision only, so all that is not attention is tried beside it in float32
    attentions = ["sdpa", own] if own.startswith("flash") else [own]
    model.eval()
    try:
        with torch.no_grad(), _in_float32(model):
            return any(_differ(model, attention, (one, other), part, inputs) for attention in attentions)
    except Exception as error:  # such as weights that are not all in this process: training will tell
        _log.debug("not tried on this %s, what its tokens see: %s", type(model).__name__, error)
        return False
    finally:
        model.train(was_training)


def _differ(
    model: Any, attention: str, rows: tuple[list[int], list[int]], part: slice, inputs: dict[str, torch.Tensor]
) -> bool:
    device, own = next(model.parameters()).device, model.config._attn_implementation
    if attention != own:
        model.set_attn_implementation(attention)
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=attention.startswith("flash")):
            moved = {name: value.to(device) for name, value in inputs.items()}
            first, second = (
                model(input_ids=torch.tensor([row], device=device), use_cache=False, **moved).logits[0, part]
                for row in rows
            )
    finally:
        if attention != own:
            model.set_attn_implementation(own)
    rounding = _ROUNDING * torch.finfo(first.dtype).eps * first.abs().max()
    return bool((first - second).abs().max() > rounding)


@contextmanager
def _in_float32(model: Any) -> Iterator[None]:
    """Weights of half precision as float32; narrowing them again gives back the same numbers."""
    halves = [
        (weight, weight.dtype) for weight in model.parameters() if weight.dtype in (torch.bfloat16, torch.float16)
    ]
    try:
        for weight, _ in halves:
            weight.data = weight.data.float()
        yield
    finally:
        for weight, dtype in halves:
            weight.data = weight.data.to(dtype)


def check_same_tokenizer(training: Manifest, validation: Manifest) -> None:
    """Raises SetError when the two sets were written with different tokenizers."""
    mine, other = training.info.tokenizer, validation.info.tokenizer
    if mine.fingerprint != other.fingerprint:
        raise SetError(
            f"{validation.root}: written with tokenizer {other.name!r} ({other.fingerprint}), but {training.root}, on which the model is "
            f"trained, with {mine.name!r} ({mine.fingerprint}); write the validation set with the tokenizer of the training set"
        )
