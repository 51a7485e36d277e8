"""Exact evaluation: the sum of token losses over their number, each validation sequence once, on any number of ranks.

What is right is worked out row by row from what plain WebDataset reads.
"""

import json
import math
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PrinterCallback

from tests.helpers.commands import train_main as main
from tests.helpers.marked import write_marked
from tests.helpers.recorder import RecordingTrainer, quiet_arguments
from tests.helpers.tokenizers import byte_tokenizer, natural_texts
from tests.helpers.written import EOS
from tests.torchrun.start import torchrun
from tokentar import Access, Manifest, World, write_shards
from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.shard_writer.format.manifest import write_manifest
from tokentar.train.data.shard_pool import ShardPool
from tokentar.train.trainer import evaluation

LENGTH, BATCH = 32, 3
SIZES = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": LENGTH, "initializer_range": 0.4}
COMMAND = {"model_config": json.dumps({"model_type": "gpt2", **SIZES, "resid_pdrop": 0.1})}
COMMAND |= {"max_steps": "4", "eval_strategy": "steps", "eval_steps": "2", "per_device_eval_batch_size": str(BATCH)}
COMMAND |= {"per_device_train_batch_size": "2", "use_cpu": "true", "report_to": "none", "disable_tqdm": "true"}
EVALUATED = ("eval_loss", "eval_perplexity", "eval_sequences", "eval_tokens")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Real text, an eighth of it in the split `validation`, and its tokenizer beside it."""
    folder = tmp_path_factory.mktemp("written")
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder / "t0")
    texts = [{"text": text[:100]} for text in natural_texts(60)]
    settings: dict[str, Any] = {"seq_length": LENGTH, "workers": 0, "num_shards": 3, "validation_fraction": 0.125}
    return write_shards(input=texts, tokenizer=str(folder / "t0"), output=folder / "set", **settings)


@cache
def model(seed: int = 0) -> GPT2LMHeadModel:
    """A model whose token losses differ widely, so that which tokens are counted, and how often, shows in their mean."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(**SIZES, vocab_size=300, resid_pdrop=0.1)).eval()


def rows_by_webdataset(manifest: Manifest) -> list[list[int]]:
    urls = [str(manifest.path(entry)) for entry in manifest.shards]
    return [sample["input_ids.npy"].tolist() for sample in wds.WebDataset(urls, shardshuffle=False).decode()]


def row_losses(network: Any, row: list[int]) -> list[float]:
    """The loss of every token of a row but the first."""
    with torch.no_grad():
        logits = network(torch.tensor([row])).logits[0].double()
    return [float(logits[i].logsumexp(0) - logits[i, row[i + 1]]) for i in range(len(row) - 1)]


def losses_by_hand(network: Any, rows: list[list[int]]) -> list[float]:
    return list(chain.from_iterable(row_losses(network, row) for row in rows))


def loaders(manifest: Manifest, ranks: int, access: Access | None = None, *, in_order: bool = False) -> list[Any]:
    """What each rank of a job evaluates on."""
    pool = ShardPool.of(manifest, access or Access(), World(), streams=1)
    settings: dict[str, Any] = {"separate_documents": False, "in_order": in_order}
    return [evaluation.ShardEvalLoader(pool, World(rank, ranks), BATCH, **settings) for rank in range(ranks)]


def by_ranks(manifest: Manifest, ranks: int, network: Any = None, access: Access | None = None) -> tuple[float, int]:
    """What the ranks of a job say together, one after the other in this process."""
    batches = [list(loader) for loader in loaders(manifest, ranks, access)]
    assert len({len(each) for each in batches}) == 1, "a rank without a batch would leave the others waiting"
    assert {batch["input_ids"].shape for each in batches for batch in each} == {(BATCH, manifest.info.seq_length)}
    sums = [evaluation.LossSum() for _ in batches]
    for each, own in zip(batches, sums, strict=True):
        for batch in each:
            with torch.no_grad():
                own.add((network or model())(**batch).loss, batch["labels"])
    return evaluation.mean_of([(own.loss, own.tokens) for own in sums])


@pytest.mark.parametrize("rows", [1, 5, 12, 13, 24])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_batches_in_order_put_side_by_side_are_the_set(tmp_path: Path, ranks: int, rows: int) -> None:
    """Rank by rank, and then batch by batch, as Trainer gathers them; `remainder` is what it keeps of the last ones."""
    manifest = write_marked(tmp_path / "set", 1, rows, vocab_length=300)
    each = loaders(manifest, ranks, in_order=True)
    seen: list[int] = []
    labelled: list[int] = []
    for number, batches in enumerate(zip(*each, strict=True), 1):
        gathered = [int(row[0]) for batch in batches for row in batch["input_ids"]]
        last = number == len(each[0])
        assert each[0].end_of_dataloader == last
        seen += gathered[: each[0].remainder or None] if last else gathered
        labelled += [int(row[0]) for batch in batches for row in batch["labels"] if row[0] != -100]
    assert seen == labelled == list(range(rows))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_the_loss_is_that_of_all_tokens_once_on_any_number_of_ranks(written: Manifest, ranks: int) -> None:
    manifest = written.split("train")
    rows = rows_by_webdataset(manifest)
    by_hand = losses_by_hand(model(), rows)
    assert np.ptp(by_hand) > 3, "losses that hardly differ would prove nothing"
    assert (len(rows) % ranks > 0) == (ranks > 1), "ranks do not get equally many"
    assert by_ranks(manifest, ranks) == (pytest.approx(np.mean(by_hand), rel=1e-6), len(rows) * (LENGTH - 1))


@pytest.mark.parametrize(("shards", "rows"), [(1, 1), (1, 3), (1, 5), (3, 1), (2, [1, 8])])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_few_rows_are_evaluated_once(tmp_path: Path, shards: int, rows: Any, ranks: int) -> None:
    manifest = write_marked(tmp_path / "set", shards, rows, vocab_length=300)
    by_hand = losses_by_hand(model(), rows_by_webdataset(manifest))
    assert by_ranks(manifest, ranks) == (pytest.approx(np.mean(by_hand), rel=1e-6), len(by_hand))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_fill_is_not_counted(tmp_path: Path, ranks: int) -> None:
    texts = [{"text": text[: 5 + 7 * number % 23]} for number, text in enumerate(natural_texts(40))]
    settings: dict[str, Any] = {"seq_length": LENGTH, "workers": 0, "num_shards": 2, "packing": "best_fit"}
    manifest = write_shards(input=texts, tokenizer=byte_tokenizer(), output=tmp_path / "set", **settings)
    rows = rows_by_webdataset(manifest)
    kept = [row[: max(i for i in range(LENGTH) if row[i] != EOS) + 2] for row in rows]
    by_hand = losses_by_hand(model(), kept)
    assert len(by_hand) < len(rows) * (LENGTH - 1), "there is fill"
    assert abs(np.mean(by_hand) - np.mean(losses_by_hand(model(), rows))) > 1e-2, "which would show"
    assert by_ranks(manifest, ranks) == (pytest.approx(np.mean(by_hand), rel=1e-6), len(by_hand))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_damaged_shard_stops_evaluation_or_is_left_out(tmp_path: Path, ranks: int) -> None:
    manifest = write_marked(tmp_path / "set", 3, [4, 3, 4], vocab_length=300)
    rows = rows_by_webdataset(manifest)
    path = manifest.path(manifest.shards[1])
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    with pytest.raises(SetError, match=r"train-000001\.tar: checksum"):
        by_ranks(manifest, ranks)
    by_hand = losses_by_hand(model(), rows[:4] + rows[7:])
    seen = by_ranks(manifest, ranks, access=Access(bad_shards="skip"))
    assert seen == (pytest.approx(np.mean(by_hand), rel=1e-6), len(by_hand))


def test_sequences_of_one_token_cannot_be_evaluated() -> None:
    with pytest.raises(SettingError, match="evaluate: no token to predict: sequences of one token have none"):
        evaluation.mean_of([(0.0, 0), (0.0, 0)])


@pytest.mark.parametrize(("loss", "expected"), [(0.0, 1.0), (math.log(300), 300.0), (1000.0, math.inf)])
def test_perplexity_is_the_exponential_of_the_loss(loss: float, expected: float) -> None:
    assert evaluation.perplexity(loss) == pytest.approx(expected)


# Through Trainer


def trained(written: Manifest, output: Path, **settings: Any) -> RecordingTrainer:
    """A trainer after four steps with dropout, evaluated or not."""
    torch.manual_seed(1)
    network = GPT2LMHeadModel(model().config)
    network.load_state_dict(model().state_dict())
    args = quiet_arguments(
        output, per_device_train_batch_size=2, per_device_eval_batch_size=BATCH, max_steps=4, **settings
    )
    trainer = RecordingTrainer(
        model=network, args=args, shards=written.split("train"), validation_shards=written.split("validation")
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def evaluations(log: list[dict[str, Any]]) -> dict[int, tuple[float, ...]]:
    """What is evaluated at each step."""
    return {entry["step"]: tuple(entry[key] for key in EVALUATED) for entry in log if "eval_loss" in entry}


def right_values(written: Manifest, network: Any) -> Any:
    """What an evaluation of the split `validation` has to say of a model, as `evaluations` has it."""
    rows = rows_by_webdataset(written.split("validation"))
    by_hand = losses_by_hand(network.eval(), rows)
    loss = float(np.mean(by_hand))
    numbers = (len(rows), len(rows) * (LENGTH - 1))
    return (pytest.approx(loss, rel=1e-5), pytest.approx(math.exp(loss), rel=1e-4), *numbers)


@pytest.mark.parametrize("workers", [0, 2])
def test_trainer_evaluates_at_its_steps_and_trains_as_if_it_did_not(
    written: Manifest, tmp_path: Path, workers: int
) -> None:
    settings: dict[str, Any] = {"dataloader_num_workers": workers}
    trainer = trained(written, tmp_path, eval_strategy="steps", eval_steps=2, **settings)
    seen = evaluations(trainer.state.log_history)
    assert list(seen) == [2, 4]
    assert tuple(trainer.evaluate()[key] for key in EVALUATED) == seen[4]
    assert trainer.model.training, "dropout is on again"
    assert seen[4] == right_values(written, trainer.model)
    assert seen[2][0] != seen[4][0]
    other = trained(written, tmp_path, eval_strategy="no", **settings)
    assert evaluations(other.state.log_history) == {}
    losses = [[e["loss"] for e in each.state.log_history if "loss" in e] for each in (trainer, other)]
    assert losses[0] == losses[1]
    assert trainer.numbers == other.numbers


def test_without_a_validation_set_there_is_nothing_to_evaluate(written: Manifest, tmp_path: Path) -> None:
    trainer = RecordingTrainer(model=model(), args=quiet_arguments(tmp_path), shards=written.split("train"))
    with pytest.raises(SettingError, match="evaluate: no validation set; give ShardTrainer validation_shards"):
        trainer.evaluate()


# Through the command


def command(written: Manifest, output: Path, **flags: str) -> list[str]:
    named = COMMAND | {"shards": str(written.root), "output_dir": str(output)} | flags
    return [word for flag, value in named.items() for word in (f"--{flag}", value)]


def of_run(output: Path) -> tuple[dict[int, tuple[float, ...]], Any]:
    """The evaluations of a run and the model that it saved."""
    state = json.loads((output / "trainer_state.json").read_text())
    return evaluations(state["log_history"]), AutoModelForCausalLM.from_pretrained(output)


@pytest.mark.parametrize("place", [None, "", "/validation-{000000..000007}.tar", "/validation-*.tar"])
def test_the_command_evaluates_the_split_or_what_is_named(written: Manifest, tmp_path: Path, place: str | None) -> None:
    named = {} if place is None else {"validation_shards": f"{written.root}{place}"}
    assert main(command(written, tmp_path / "run", **named)) == 0
    seen, network = of_run(tmp_path / "run")
    assert list(seen) == [2, 4]
    assert seen[4] == right_values(written, network)


def test_to_evaluate_a_set_without_that_split_is_refused(
    tmp_path: Path, written: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = write_marked(tmp_path / "set", 3, 4, vocab_length=300)
    tokenizer = replace(manifest.info.tokenizer, name=str(tmp_path))  # is not there, and is looked for nowhere else
    write_manifest(replace(manifest, info=replace(manifest.info, tokenizer=tokenizer)))
    assert main(command(manifest, tmp_path / "run")) == 1
    wanted = (
        "no split 'validation'; there are ['train']; write the set with --validation_fraction, or give --validation"
    )
    assert wanted in capsys.readouterr().err
    assert main(command(manifest, tmp_path / "run", validation_shards=str(written.root))) == 1
    assert "write the validation set with the tokenizer of the training set" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.timeout(150)
def test_two_ranks_with_workers_say_what_one_does(written: Manifest, tmp_path: Path) -> None:
    flags = command(written, tmp_path / "run", dataloader_num_workers="2")
    ended = torchrun("tokentar.train", *flags, ranks=2)
    assert ended.returncode == 0, ended.stderr
    seen, network = of_run(tmp_path / "run")
    assert list(seen) == [2, 4]
    assert seen[4] == right_values(written, network)
