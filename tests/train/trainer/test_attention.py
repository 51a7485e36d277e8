"""separate_documents: each document in a packed row is worked on as if it were alone.

Documents are cut out of the rows at their ends, given to the model one by one, and the logits of both ways compared:
for batches of two as the loader yields them, and for those that the model gets from Trainer while it trains.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PrinterCallback

from tests.helpers.recorder import quiet_arguments
from tests.helpers.tokenizers import byte_tokenizer, natural_texts
from tests.helpers.written import EOS
from tokentar import Manifest, ShardLoader, ShardTrainer, write_shards
from tokentar.shard_writer.errors import SettingError
from tokentar.train.trainer.arguments import ModelArguments
from tokentar.train.trainer.model_checks import keep_documents_apart
from tokentar.train.trainer.models import build_model

LENGTH, BATCH = 48, 2
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": LENGTH}
    | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    "llama": {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    | {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": LENGTH},
}
SMALL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2} | dict.fromkeys(
    ("num_attention_heads", "num_key_value_heads"), 2
)
MODELS = pytest.mark.parametrize(
    ("kind", "attention"), [(kind, attention) for kind in CONFIGS for attention in ("eager", "sdpa")]
)


class Watched(ShardTrainer):
    """`seen` holds the inputs and the logits of every training step, `losses` what Trainer makes of them."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        if return_outputs:  # of evaluation
            return loss, outputs
        self.seen = [*getattr(self, "seen", []), (dict(inputs), outputs.logits.detach(), float(loss.detach()))]
        return loss


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """20 rows of documents of 6 to 60 tokens: of one document, of several, and of parts of some."""
    texts = [{"text": text[: 5 + 31 * number % 55]} for number, text in enumerate(natural_texts(32))]
    folder = tmp_path_factory.mktemp("written")
    return write_shards(
        input=texts, tokenizer=byte_tokenizer(), output=folder / "set", seq_length=LENGTH, workers=0, num_shards=2
    )


def made(manifest: Manifest, kind: str, attention: str) -> Any:
    """The model that the flags ask for; its large weights make much of what a token attends to."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = json.dumps({"model_type": kind, "initializer_range": 0.2} | CONFIGS[kind])
    model = build_model(ModelArguments(model_config=config, attn_implementation=attention), manifest.info)
    assert model.config._attn_implementation == attention
    return model.eval()


def documents(row: list[int]) -> Iterator[list[int]]:
    """The documents, or parts of some, in a row."""
    document: list[int] = []
    for token in row:
        document.append(token)
        if token == EOS:
            yield document
            document = []
    if document:
        yield document


def alone(model: Any, ids: Any) -> Any:
    """The logits of rows whose documents the model sees one at a time: (batch, seq_length, vocabulary)."""
    with torch.no_grad():
        rows = [[model(torch.tensor([document])).logits[0] for document in documents(row)] for row in ids.tolist()]
    return torch.stack([torch.cat(row) for row in rows])


def largest_gap(one: Any, other: Any) -> float:
    return float((one - other).abs().max())


def test_the_rows_hold_several_documents_and_parts_of_some(manifest: Manifest) -> None:
    rows = [row for batch in ShardLoader(manifest, batch_size=1) for row in batch["input_ids"].tolist()]
    counts = [len(list(documents(row))) for row in rows]
    assert len(rows) >= 18
    assert max(counts) >= 3
    assert sum(count >= 2 for count in counts) > 12
    assert sum(row[-1] != EOS for row in rows) > 12


@MODELS
def test_logits_of_a_packed_document_are_those_of_the_document_alone(
    manifest: Manifest, kind: str, attention: str
) -> None:
    model = made(manifest, kind, attention)
    for batch in ShardLoader(manifest, batch_size=BATCH, separate_documents=True):
        assert set(batch) == {"input_ids", "labels", "position_ids"}
        with torch.no_grad():
            packed = model(**batch, use_cache=False).logits
        assert largest_gap(packed, alone(model, batch["input_ids"])) < 1e-5


@MODELS
def test_by_default_documents_of_a_row_are_one_text(manifest: Manifest, kind: str, attention: str) -> None:
    model = made(manifest, kind, attention)
    gaps = []
    for batch in ShardLoader(manifest, batch_size=BATCH):
        assert set(batch) == {"input_ids", "labels"}
        with torch.no_grad():
            packed = model(**batch, use_cache=False).logits
        gaps.append(largest_gap(packed, alone(model, batch["input_ids"])))
    assert max(gaps) > 0.5


def trainer(manifest: Manifest, output: Path, kind: str, attention: str, **settings: Any) -> Watched:
    """A trainer that has gone through an epoch at a learning rate of 0, so that its model is the one it began with."""
    args = quiet_arguments(output, per_device_train_batch_size=BATCH, num_train_epochs=1, learning_rate=0.0)
    model = made(manifest, kind, attention)
    trainer = Watched(model=model, args=args, shards=manifest, validation_shards=manifest, **settings)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def loss_by_hand(logits: Any, ids: Any) -> float:
    """The mean loss over all tokens of rows but the first of each."""
    picked = logits[:, :-1].double().log_softmax(-1).gather(-1, ids[:, 1:, None])
    return -float(picked.mean())


def loss_of_documents(model: Any, ids: Any) -> float:
    """The mean loss over the documents of rows, each worked on alone: all tokens but the first of each document."""
    losses = []
    for row in ids.tolist():
        for document in documents(row):
            tokens = torch.tensor([document])
            with torch.no_grad():
                predicted = model(tokens).logits[0, :-1].double().log_softmax(-1)
            losses += (-predicted[range(len(document) - 1), document[1:]]).tolist()
    return sum(losses) / len(losses)


@MODELS
def test_through_trainer_each_document_is_alone_in_training_and_in_evaluation(
    manifest: Manifest, tmp_path: Path, kind: str, attention: str
) -> None:
    """Logits of every step, its loss, and the loss of evaluation. An EOS does not predict the first token of the next document."""
    watched = trainer(manifest, tmp_path, kind, attention, separate_documents=True)
    model = watched.model.eval()
    assert len(watched.seen) == len(watched.train_loader) > 8
    for inputs, logits, loss in watched.seen:
        ids = inputs["input_ids"]
        assert largest_gap(logits, alone(model, ids)) < 1e-5
        assert loss == pytest.approx(loss_of_documents(model, ids), rel=1e-5)
    rows = torch.tensor([row for index in range(2) for row in manifest.open(index).rows.tolist()])
    assert watched.evaluate()["eval_loss"] == pytest.approx(loss_of_documents(model, rows), rel=1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_through_trainer_documents_are_one_text_by_default(manifest: Manifest, tmp_path: Path, kind: str) -> None:
    watched = trainer(manifest, tmp_path, kind, "sdpa")
    model = watched.model.eval()
    assert max(largest_gap(logits, alone(model, inputs["input_ids"])) for inputs, logits, _ in watched.seen) > 0.5
    rows = torch.tensor([row for index in range(2) for row in manifest.open(index).rows.tolist()])
    assert abs(watched.evaluate()["eval_loss"] - loss_by_hand(alone(model, rows), rows)) > 1e-3


LEAKING: dict[str, dict[str, Any]] = {
    "opt": {
        "hidden_size": 16,
        "word_embed_proj_dim": 16,
        "ffn_dim": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
    },
    "mamba": {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 1},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2},
    "xglm": {"d_model": 32, "ffn_dim": 32, "num_layers": 2, "attention_heads": 2},
    "lfm2": SMALL | {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": SMALL
    | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    | {"shared_expert_intermediate_size": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
    | {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"]},
}
APART: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "mixtral": SMALL | {"num_local_experts": 4},
    "gemma2": SMALL | {"head_dim": 16},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", LEAKING)
def test_a_model_that_does_not_keep_documents_apart_is_refused(
    manifest: Manifest, kind: str, dtype: torch.dtype
) -> None:
    """OPT and XGLM count positions by their own mask, Bloom has none, the others carry a state across documents."""
    config = json.dumps({"model_type": kind} | LEAKING[kind])
    model = build_model(ModelArguments(model_config=config), manifest.info).to(dtype)
    with pytest.raises(
        SettingError, match=f"separate_documents: in {type(model).__name__} tokens of one document reach"
    ):
        keep_documents_apart(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", APART)
def test_a_model_that_keeps_documents_apart_is_taken_as_it_is(
    manifest: Manifest, kind: str, dtype: torch.dtype
) -> None:
    """Its weights are the same bits afterwards."""
    config = json.dumps({"model_type": kind} | APART[kind])
    model = build_model(ModelArguments(model_config=config), manifest.info).to(dtype)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    keep_documents_apart(model)
    for name, weight in model.named_parameters():
        assert weight.dtype == dtype
        assert torch.equal(weight, before[name])


def test_the_trainer_refuses_a_model_that_does_not_keep_documents_apart(manifest: Manifest, tmp_path: Path) -> None:
    model = build_model(ModelArguments(model_config=json.dumps({"model_type": "opt"} | LEAKING["opt"])), manifest.info)
    with pytest.raises(SettingError, match="separate_documents: in OPTForCausalLM"):
        ShardTrainer(model=model, args=quiet_arguments(tmp_path), shards=manifest, separate_documents=True)
