"""What ShardTrainerMixin takes for granted of Trainer: the one installed has it, and one that changed is refused by the method's name."""

import ast
from pathlib import Path
from typing import Any

import pytest
from transformers import Seq2SeqTrainer, Trainer

from tests.helpers.marked import write_marked
from tests.helpers.recorder import quiet_arguments, tiny_model
from tests.torchrun.start import ROOT
from tokentar import SettingError, ShardTrainerMixin
from tokentar.train.trainer import mixin, shard_evaluation, shard_saving
from tokentar.train.trainer.trainer_hooks import HOOKS, check_class


def changed(name: str, method: Any) -> type:
    """A Trainer class of which one method is another one, or is gone."""
    members = {key: value for key, value in vars(Trainer).items() if key not in ("__dict__", "__weakref__")}
    members.pop(name)
    return type("Changed", (object,), members if method is None else members | {name: method})


def without_parameters(self: Any) -> None:
    """What a method may become."""


def with_a_parameter_more(self: Any, output_dir: str, world: int) -> None:
    """What a method may become."""


@pytest.mark.parametrize("trainer", [Trainer, Seq2SeqTrainer])
def test_the_trainers_installed_have_all_that_is_taken_for_granted(trainer: type) -> None:
    check_class(trainer)


@pytest.mark.parametrize("name", HOOKS)
def test_a_trainer_without_a_method_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(SettingError, match=rf"Changed \(transformers [\d.]+\) has no {name}; .* needs it, as it "):
        check_class(changed(name, None))


@pytest.mark.parametrize("name", [name for name, (parameters, _) in HOOKS.items() if parameters])
def test_a_trainer_whose_method_takes_other_parameters_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(SettingError, match=rf"has {name}\(\), needed: {name}\({', '.join(HOOKS[name][0])}\);"):
        check_class(changed(name, without_parameters))


def test_a_parameter_that_nobody_would_give_is_seen() -> None:
    with pytest.raises(
        SettingError, match=r"has _save_rng_state\(output_dir, world\), needed: _save_rng_state\(output_dir\)"
    ):
        check_class(changed("_save_rng_state", with_a_parameter_more))


def test_a_class_between_that_passes_all_on_is_taken() -> None:
    class Between(Trainer):
        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            return super().evaluate(*args, **kwargs)

    check_class(Between)


def test_the_check_is_made_when_a_trainer_is_made(tmp_path: Path) -> None:
    class Changed(Trainer):
        _save_rng_state = with_a_parameter_more

    class OnShards(ShardTrainerMixin, Changed):
        pass

    manifest = write_marked(tmp_path / "set", 2, 4, vocab_length=300)
    with pytest.raises(SettingError, match=r"OnShards .* has _save_rng_state"):
        OnShards(tiny_model(), quiet_arguments(tmp_path), shards=manifest)

    class OnNothing(ShardTrainerMixin):
        pass

    with pytest.raises(SettingError, match=r"OnNothing .* has no _save_rng_state"):
        OnNothing(tiny_model(), quiet_arguments(tmp_path), shards=manifest)


def of_trainer(module: Any) -> set[str]:
    """Names of Trainer's that a module uses of `self` or `super()`, other than those that it defines itself."""
    tree = ast.parse(Path(module.__file__).read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_self(node.value)}
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return {name for name in used | defined if hasattr(Trainer, name)} - {"__init__"}


def _is_self(node: ast.expr) -> bool:
    is_super = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    return is_super or (isinstance(node, ast.Name) and node.id == "self")


def test_nothing_else_of_trainer_is_overridden_or_called() -> None:
    used = set().union(*map(of_trainer, (mixin, shard_evaluation, shard_saving)))
    assert used - {"is_world_process_zero"} == set(HOOKS)
    assert {name for name in used if name.startswith("_")} == {"_save_rng_state", "_get_num_items_in_batch"}


def test_no_other_module_reaches_into_transformers_trainer() -> None:
    for path in sorted((ROOT / "train").rglob("*.py")):
        assert "transformers.trainer." not in path.read_text().replace("transformers.trainer_", ""), path
