"""ShardTrainerMixin over a Trainer class of a user: it trains on each sequence once, goes on where it was and evaluates by its loss."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import PrinterCallback, Trainer, TrainerCallback

from tests.helpers.marked import write_marked
from tests.helpers.recorder import quiet_arguments, tiny_model
from tokentar import Manifest, SettingError, ShardTrainer, ShardTrainerMixin


class UsersTrainer(Trainer):
    """As in many scripts: a loss of its own, of the labels that it takes out, and more that is noted."""

    def __init__(self, *args: Any, weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weight, self.numbers = weight, []

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if model.training:
            self.numbers.append(inputs["input_ids"][:, 0].tolist())
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        losses = cross_entropy(
            outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum", ignore_index=-100
        )
        loss = self.weight * losses / num_items_in_batch
        return (loss, outputs) if return_outputs else loss


class OnShards(ShardTrainerMixin, UsersTrainer):
    """The user's trainer, on sets of shards."""


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    torch.set_num_threads(1)
    return write_marked(tmp_path / "set", 4, [10, 10, 11, 10], vocab_length=300)


@pytest.fixture
def make(manifest: Manifest, tmp_path: Path) -> Callable[..., OnShards]:
    def trainer(kind: Any = OnShards, **settings: Any) -> Any:
        torch.manual_seed(0)
        own = {name: settings.pop(name) for name in ("weight", "callbacks", "validation_shards") if name in settings}
        usual = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "per_device_eval_batch_size": 3}
        usual |= {"num_train_epochs": 2, "learning_rate": 0.05}
        args = quiet_arguments(tmp_path / "run", **usual | settings)
        made = kind(tiny_model(), args, shards=manifest, streams=4, **own)
        made.remove_callback(PrinterCallback)
        return made

    return trainer


def test_a_users_trainer_trains_on_each_sequence_once_and_goes_on_where_it_was(make: Callable[..., OnShards]) -> None:
    whole = make(save_strategy="steps", save_steps=13)
    whole.train()
    epochs = [list(chain(*whole.numbers[:20])), list(chain(*whole.numbers[20:]))]
    assert [len(epoch) for epoch in epochs] == [len(set(epoch)) for epoch in epochs] == [40, 40]
    rest = make()
    rest.train(resume_from_checkpoint=str(Path(str(whole.args.output_dir)) / "checkpoint-13"))
    assert rest.numbers == whole.numbers[26:]
    assert rest.state.epoch == whole.state.epoch == 2.0
    for one, other in zip(whole.model.parameters(), rest.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_loss_of_the_users_own_that_is_the_models_gives_the_same_weights_and_evaluation(
    make: Callable[..., Any], manifest: Manifest
) -> None:
    mine, usual = (make(kind, validation_shards=manifest) for kind in (OnShards, ShardTrainer))
    for trainer in (mine, usual):
        trainer.train()
    for one, other in zip(mine.model.parameters(), usual.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert mine.evaluate()["eval_loss"] == pytest.approx(usual.evaluate()["eval_loss"], rel=1e-4)


def test_evaluation_is_by_the_loss_of_the_users_own(make: Callable[..., Any], manifest: Manifest) -> None:
    """Batches of 3 of 41 sequences: one of them is filled up."""
    plain = make(ShardTrainer, validation_shards=manifest).evaluate()
    three = make(weight=3.0, validation_shards=manifest).evaluate()
    assert three["eval_loss"] == pytest.approx(3 * plain["eval_loss"], rel=1e-6)
    assert three["eval_tokens"] == plain["eval_tokens"] == 41 * 7


@pytest.mark.parametrize("name", ["train_dataset", "data_collator"])
def test_what_the_shards_take_the_place_of_is_refused(manifest: Manifest, tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match=f"{name}: given, but batches come from `shards` as they are"):
        OnShards(tiny_model(), quiet_arguments(tmp_path), shards=manifest, **{name: list})
    OnShards(tiny_model(), quiet_arguments(tmp_path), shards=manifest, **{name: None})


def test_callbacks_see_the_epoch_of_the_data_also_after_a_resume(make: Callable[..., OnShards]) -> None:
    class Epochs(TrainerCallback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.seen.append(state.epoch)

    first, second = Epochs(), Epochs()
    whole = make(save_strategy="steps", save_steps=13, callbacks=[first])
    whole.train()
    make(callbacks=[second]).train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-13")
    assert first.seen == pytest.approx([step / 10 for step in range(1, 21)])
    assert second.seen == first.seen[13:]


def test_epochs_are_saved_and_evaluated_at_their_ends_also_after_a_resume(
    make: Callable[..., OnShards], manifest: Manifest
) -> None:
    settings: dict[str, Any] = {"eval_strategy": "epoch", "num_train_epochs": 3, "validation_shards": manifest}
    whole = make(save_strategy="steps", save_steps=13, **settings)
    whole.train()
    rest = make(save_strategy="epoch", **settings)
    rest.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-13")
    evaluated = [[e["step"] for e in each.state.log_history if "eval_loss" in e] for each in (whole, rest)]
    assert evaluated == [[10, 20, 30], [10, 20, 30]], "what a checkpoint has behind it is in its log"
    saved = sorted(path.name for path in Path(str(rest.args.output_dir)).glob("checkpoint-*"))
    assert saved == ["checkpoint-13", "checkpoint-20", "checkpoint-26", "checkpoint-30"]
