"""compute_metrics and predictions over sets of shards: each validation sequence once, in the order of the set; several sets by name.

What is right is worked out by hand from the numbers that marked sequences hold.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import log_softmax
from transformers import EvalPrediction, PrinterCallback

from tests.helpers.marked import write_marked
from tests.helpers.recorder import quiet_arguments, tiny_model
from tests.torchrun.start import ROOT
from tokentar import Manifest, SettingError, ShardTrainer

ROWS = [7, 6]
Make = Callable[..., ShardTrainer]


@pytest.fixture
def validation(tmp_path: Path) -> Manifest:
    """13 sequences: five batches of three, the last with two that fill it up."""
    return write_marked(tmp_path / "validation", 2, ROWS, vocab_length=300)


@pytest.fixture
def make(validation: Manifest, tmp_path: Path) -> Make:
    torch.set_num_threads(1)
    training = write_marked(tmp_path / "set", 4, 8, vocab_length=300)

    def trainer(**settings: Any) -> ShardTrainer:
        torch.manual_seed(0)
        names = ("compute_metrics", "preprocess_logits_for_metrics", "eval_dataset", "validation_shards")
        own = {name: settings.pop(name) for name in names if name in settings}
        if "validation_shards" not in own:
            own = {"eval_dataset": validation} | own
        usual = {"per_device_eval_batch_size": 3, "per_device_train_batch_size": 4, "max_steps": 4}
        args = quiet_arguments(tmp_path / "run", **usual | settings)
        made = ShardTrainer(tiny_model(), args, shards=training, streams=4, **own)
        made.remove_callback(PrinterCallback)
        return made

    return trainer


def logits_by_hand(trainer: Any) -> np.ndarray[Any, Any]:
    """What the model gives for sequences 0 … 12, one at a time: (13, 8, 300)."""
    trainer.model.eval()
    with torch.no_grad():
        rows = [trainer.model(torch.full((1, 8), number)).logits[0] for number in range(sum(ROWS))]
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("accumulation", [None, 2])
@pytest.mark.parametrize("batch_size", [1, 3, 13, 20])
def test_metrics_are_of_each_validation_sequence_once(make: Make, batch_size: int, accumulation: int | None) -> None:
    seen: list[EvalPrediction] = []

    def metrics(prediction: EvalPrediction) -> dict[str, float]:
        seen.append(prediction)
        return {"rows": len(prediction.label_ids)}

    settings: dict[str, Any] = {"include_for_metrics": ["inputs"], "eval_accumulation_steps": accumulation}
    trainer = make(compute_metrics=metrics, per_device_eval_batch_size=batch_size, **settings)
    found = trainer.evaluate()
    assert found["eval_rows"] == found["eval_sequences"] == 13
    assert found["eval_loss"] == pytest.approx(make().evaluate()["eval_loss"], rel=1e-6)
    numbers = np.repeat(np.arange(13)[:, None], 8, axis=1)
    assert np.array_equal(seen[0].label_ids, numbers)
    assert np.array_equal(seen[0].inputs, numbers)
    np.testing.assert_allclose(seen[0].predictions, logits_by_hand(trainer), rtol=1e-4, atol=1e-5)


def test_batches_that_are_not_joined_are_those_of_the_set(make: Make) -> None:
    sizes: list[list[int]] = []

    def metrics(prediction: EvalPrediction) -> dict[str, float]:
        sizes.append([len(batch) for batch in prediction.label_ids])
        return {}

    make(compute_metrics=metrics, eval_do_concat_batches=False).evaluate()
    assert sizes == [[3, 3, 3, 3, 1]]


def test_logits_are_made_smaller_before_they_are_collected(make: Make) -> None:
    def best(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1)

    shapes: list[tuple[int, ...]] = []

    def accuracy(prediction: EvalPrediction) -> dict[str, float]:
        shapes.append(prediction.predictions.shape)
        return {"accuracy": float((prediction.predictions[:, :-1] == prediction.label_ids[:, 1:]).mean())}

    trainer = make(compute_metrics=accuracy, preprocess_logits_for_metrics=best)
    expected = float((logits_by_hand(trainer).argmax(-1)[:, :-1] == np.arange(13)[:, None]).mean())
    assert trainer.evaluate()["eval_accuracy"] == pytest.approx(expected)
    assert shapes == [(13, 8)]


def test_metrics_by_batch_are_those_of_all_at_once(make: Make) -> None:
    batches: list[np.ndarray[Any, Any]] = []

    def total(prediction: EvalPrediction, compute_result: bool) -> dict[str, float]:
        batches.append(prediction.label_ids.cpu().numpy())
        return {"total": float(np.concatenate(batches)[:, 0].sum())} if compute_result else {}

    found = make(compute_metrics=total, batch_eval_metrics=True).evaluate()
    assert [len(batch) for batch in batches] == [3, 3, 3, 3, 1]
    assert found["eval_total"] == sum(range(13))


def test_predictions_are_in_the_order_of_the_set(make: Make, validation: Manifest) -> None:
    trainer = make()
    predicted = trainer.predict(validation.folder)  # type: ignore[arg-type]
    np.testing.assert_allclose(predicted.predictions, logits_by_hand(trainer), rtol=1e-4, atol=1e-5)
    assert np.array_equal(predicted.label_ids[:, 0], np.arange(13))
    assert predicted.metrics is not None
    assert predicted.metrics["test_loss"] == pytest.approx(trainer.evaluate()["eval_loss"])


def test_the_loss_is_the_smoothed_one_where_that_is_trained_on(make: Make) -> None:
    trainer = make(label_smoothing_factor=0.25)
    logs = log_softmax(torch.from_numpy(logits_by_hand(trainer)).double(), -1)[:, :-1]
    right = torch.stack([-logs[number, :, number] for number in range(13)]).mean()
    expected = 0.75 * float(right) + 0.25 * float(-logs.mean())
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


# Several sets


def test_several_sets_are_evaluated_each_by_its_name(make: Make, validation: Manifest, tmp_path: Path) -> None:
    other = write_marked(tmp_path / "other", 1, 5, vocab_length=300)
    trainer = make(eval_dataset={"a": validation, "b": str(other.root)}, eval_strategy="steps", eval_steps=2)
    trainer.train()
    alone = {name: trainer.evaluate(each)["eval_loss"] for name, each in (("a", validation), ("b", other.folder))}
    found = trainer.evaluate()
    for name, sequences in (("a", 13), ("b", 5)):
        assert found[f"eval_{name}_loss"] == alone[name] == trainer.evaluate(name)["eval_loss"]
        assert found[f"eval_{name}_sequences"] == sequences
        steps = [entry["step"] for entry in trainer.state.log_history if f"eval_{name}_perplexity" in entry]
        assert steps[:2] == [2, 4]
    assert alone["a"] != alone["b"]
    assert trainer.evaluate({"x": other})["eval_x_loss"] == alone["b"]


def test_the_best_model_is_found_by_one_of_several_sets(make: Make, validation: Manifest, tmp_path: Path) -> None:
    """The learning rate is so high that what follows the best step is worse."""
    other = write_marked(tmp_path / "other", 1, 5, vocab_length=300)
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_b_loss", "greater_is_better": False}
    each_step = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 6}
    trainer = make(eval_dataset={"a": validation, "b": other}, learning_rate=1.0, **best, **each_step)
    trainer.train()
    losses = {e["step"]: e["eval_b_loss"] for e in trainer.state.log_history if "eval_b_loss" in e}
    assert set(losses) == set(range(1, 7))
    step = min(losses, key=lambda number: losses[number])
    assert trainer.state.best_model_checkpoint == str(tmp_path / "run" / f"checkpoint-{step}")
    assert trainer.evaluate()["eval_b_loss"] == pytest.approx(losses[step], rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eval_dataset": [1, 2]}, "eval_dataset: list, needed: a set of shards"),
        ({"eval_dataset": {"a": 3}}, "eval_dataset a: int, needed: a set of shards"),
        ({"eval_dataset": {"a": ROOT / "nowhere"}}, r"nowhere: no dataset\.json"),
        ({"eval_dataset": ".", "validation_shards": "."}, "validation_shards and eval_dataset are the same"),
    ],
)
def test_what_is_no_set_of_shards_is_refused(make: Make, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        make(**settings)
    assert isinstance(caught.value, SettingError) or "dataset.json" in str(caught.value)
