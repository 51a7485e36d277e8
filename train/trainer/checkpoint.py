"""The position of the data in a checkpoint, and which checkpoint is whole (G6).

A checkpoint of Trainer is complete when its trainer_state.json is there and can be read, which Trainer writes last. The
position is written before it, so a checkpoint that looks complete is.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any

from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.shard_writer.storage import files

POSITION_FILE = "data_position.json"
STATE_FILE = "trainer_state.json"
_FOLDER = re.compile(r"checkpoint-(\d+)")
_log = logging.getLogger(__name__)


def write_position(folder: Path, state: dict[str, Any], step: int) -> None:
    """Write the position of the whole job at `step` into a checkpoint that Trainer is about to write, and mark that as unfinished."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STATE_FILE).unlink(missing_ok=True)  # of an earlier run that came as far
    files.put(folder / POSITION_FILE, (json.dumps(state | {"step": step}, indent=2) + "\n").encode())


def read_position(folder: Path) -> dict[str, Any]:
    """What write_position wrote. Raises SetError when it is missing or is not of the step that the checkpoint is of."""
    try:
        state: dict[str, Any] = json.loads((folder / POSITION_FILE).read_text())
    except FileNotFoundError:
        raise SetError(
            f"{folder}: no {POSITION_FILE}, so this is no checkpoint of a run on shards; start anew, or load its weights with "
            "--model_name_or_path"
        ) from None
    except ValueError as error:
        raise SetError(f"{folder / POSITION_FILE}: not JSON ({error}); use an earlier checkpoint") from None
    if not isinstance(state, dict):
        raise SetError(
            f"{folder / POSITION_FILE}: {type(state).__name__} in it, needed: an object; use an earlier checkpoint"
        )
    step = global_step(folder)
    if step != state.get("step"):
        raise SetError(
            f"{folder}: {POSITION_FILE} is of step {state.get('step')}, {STATE_FILE} of step {step}; use an earlier checkpoint"
        )
    return state


def warn_of_weights_alone(folder: Path) -> None:
    """Say so where Trainer would begin the schedule anew without a word."""
    if not ((folder / "scheduler.pt").exists() and any(folder.glob("*optim*"))):
        _log.warning(
            "%s: no state of optimizer and learning rate in it (--save_only_model, or lost): both start anew", folder
        )


def global_step(folder: Path) -> int | None:
    """The step of a checkpoint; None when it is unfinished or damaged."""
    try:
        step: int = json.loads((folder / STATE_FILE).read_text())["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return step


def find(output_dir: Path, wish: str | bool | None) -> Path | None:
    """The checkpoint to go on from: the one named, or, for True or "true", the last whole one in `output_dir`, if there is any.

    Raises SettingError when the one named is no whole checkpoint.
    """
    wish = str(wish or False)
    if wish.lower() == "false":
        return None
    if wish.lower() == "true":
        return _last_whole(output_dir)
    if global_step(Path(wish)) is None:
        raise SettingError(
            f"resume_from_checkpoint: {wish}: no whole checkpoint (no readable {STATE_FILE}); `true` takes the last whole one of "
            f"{output_dir}: {_last_whole(output_dir)}"
        )
    return Path(wish)


def _last_whole(output_dir: Path) -> Path | None:
    steps = [int(match[1]) for path in output_dir.glob("checkpoint-*") if (match := _FOLDER.fullmatch(path.name))]
    for step in sorted(steps, reverse=True):
        folder = output_dir / f"checkpoint-{step}"
        if global_step(folder) == step and (folder / POSITION_FILE).exists():
            return folder
        _log.warning("%s: unfinished, passed over", folder)
    return None
