"""A disk that is full while a checkpoint is written: an error that names the file, and the checkpoint before it is gone on from (G6)."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from transformers import Trainer

from tests.helpers.commands import train_main as main
from tests.helpers.marked import write_marked
from tokentar import Manifest
from tokentar.shard_writer.errors import StoreError
from tokentar.shard_writer.format.manifest import write_manifest
from tokentar.train.trainer import checkpoint, failures

CONFIG = '{"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8}'
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
OF_TORCH = RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    torch.set_num_threads(1)
    manifest = write_marked(tmp_path / "set", 4, 8, vocab_length=300)
    manifest = replace(
        manifest, info=replace(manifest.info, tokenizer=replace(manifest.info.tokenizer, name=str(tmp_path)))
    )
    write_manifest(manifest)
    return manifest


def flags(manifest: Manifest, output: Path, **others: Any) -> list[str]:
    """Eight steps, of which every other one is saved, and the last one kept."""
    named: dict[str, Any] = {"shards": manifest.root, "model_config": CONFIG, "output_dir": output, "use_cpu": "true"}
    named |= {"report_to": "none", "disable_tqdm": "true", "max_steps": 8, "per_device_train_batch_size": 4}
    named |= {"save_steps": 2, "save_total_limit": 1, "resume_from_checkpoint": "true"} | others
    return [word for flag, value in named.items() for word in (f"--{flag}", str(value))]


def failing_once(monkeypatch: pytest.MonkeyPatch, method: str, error: Exception) -> None:
    """Let a method of Trainer fail at step 4, where it may have written a part."""
    original: Callable[..., Any] = getattr(Trainer, method)

    def fails(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 4:
            raise error
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, method, fails)


@pytest.mark.parametrize(
    ("method", "error", "file"),
    [
        ("_save", SafetensorError("I/O error: No space left on device (os error 28)"), "data_position.json"),
        ("_save", OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "data_position.json"),
        ("_save_optimizer_and_scheduler", OF_TORCH, "training_args.bin"),
        ("_save_rng_state", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "rng_state.pth"), "rng_state.pth"),
        ("_save_scaler", FULL, "scheduler.pt"),
    ],
)
def test_the_checkpoint_before_the_disk_was_full_is_gone_on_from(
    manifest: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    method: str,
    error: Exception,
    file: str,
) -> None:
    with monkeypatch.context() as patched:
        failing_once(patched, method, error)
        assert main(flags(manifest, tmp_path / "run")) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("error: ")
    assert f"{file}: cannot be written: no space left on its disk" in told
    assert "--resume_from_checkpoint true" in told
    assert checkpoint.find(tmp_path / "run", True) == tmp_path / "run" / "checkpoint-2"
    assert main(flags(manifest, tmp_path / "run")) == 0
    assert f"going on from {tmp_path}/run/checkpoint-2: step 2, epoch 0, sample 8" in caplog.text
    assert checkpoint.find(tmp_path / "run", True) == tmp_path / "run" / "checkpoint-8"


def test_a_last_file_that_is_cut_leaves_the_checkpoint_unfinished(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import TrainerState

    original = TrainerState.save_to_json

    def cut(self: Any, json_path: str) -> None:
        original(self, json_path)
        if self.global_step == 4:
            os.truncate(json_path, 100)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(TrainerState, "save_to_json", cut)
    assert main(flags(manifest, tmp_path / "run")) == 1
    assert "trainer_state.json: cannot be written: no space left on its disk" in capsys.readouterr().err
    assert checkpoint.find(tmp_path / "run", True) == tmp_path / "run" / "checkpoint-2"


def test_the_last_model_that_finds_no_room_is_told(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing_once(monkeypatch, "_save", FULL)
    assert main(flags(manifest, tmp_path / "run", max_steps=4, save_strategy="no")) == 1
    assert f"error: {tmp_path}/run: cannot be written: no space left on its disk" in capsys.readouterr().err


def test_what_is_no_matter_of_writing_is_not_called_so(tmp_path: Path) -> None:
    for error in (RuntimeError("CUDA out of memory"), ConnectionResetError(errno.ECONNRESET, "reset"), ValueError("x")):
        with pytest.raises(type(error)), failures.writing(tmp_path):
            raise error
    with pytest.raises(StoreError, match=r"f\.json: cannot be written: .*Read-only"), failures.writing(tmp_path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / "f.json"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 kB, on which there is room for a checkpoint or two."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_on_a_disk_that_is_really_full_the_checkpoint_before_is_gone_on_from(
    manifest: Manifest, small_disk: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    output = small_disk / "run"
    assert main(flags(manifest, output, save_total_limit=5)) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert "cannot be written: no space left on its disk" in told
    last = checkpoint.find(output, True)
    assert last is not None
    assert str(output / f"checkpoint-{int(last.name.split('-')[1]) + 2}") in told
    subprocess.run(["mount", "-o", "remount,size=3m", str(small_disk)], check=True)
    assert main(flags(manifest, output, save_total_limit=5)) == 0
    assert f"going on from {last}: step" in caplog.text
