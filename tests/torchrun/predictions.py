"""What torchrun starts: evaluates marked sets with compute_metrics and writes what each rank saw to OUTPUT/RANK.json.

torchrun -m tests.torchrun.predictions SET OUTPUT
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import EvalPrediction

from tests.helpers.recorder import quiet_arguments, tiny_model
from tests.torchrun.group import in_group
from tokentar import ShardTrainer


def evaluate_rank(shards: str, output: str) -> None:
    """Evaluate with metrics, all at once and by batch, and without, and write it all."""
    seen: list[list[int]] = []

    def metrics(prediction: EvalPrediction, compute_result: bool = True) -> dict[str, Any]:
        labels = torch.as_tensor(prediction.label_ids)
        seen.append(labels[:, 0].tolist())
        return {"rows": len(labels), "predicted": len(prediction.predictions)} if compute_result else {}

    report: dict[str, Any] = {}
    for name, settings in {
        "at_once": {},
        "by_batch": {"batch_eval_metrics": True},
        "own_average": {"average_tokens_across_devices": False},
        "loss_alone": {},
    }.items():
        torch.manual_seed(0)
        args = quiet_arguments(
            Path(output) / "run", per_device_train_batch_size=1, per_device_eval_batch_size=3, **settings
        )
        own = {} if name == "loss_alone" else {"compute_metrics": metrics}
        trainer = ShardTrainer(tiny_model(), args, shards=shards, validation_shards=shards, streams=4, **own)
        found = trainer.evaluate()
        report[name] = {"seen": list(seen), **{key: found.get(f"eval_{key}") for key in ("loss", "rows", "predicted")}}
        seen.clear()
    (Path(output) / f"{dist.get_rank()}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    import sys

    in_group(evaluate_rank, *sys.argv[1:])
