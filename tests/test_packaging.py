"""What is installed: the wheel beside a user's own files (case F05), and no more than is needed."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers.tokenizers import byte_tokenizer
from tests.helpers.written import jsonl
from tests.test_architecture import MODULES, ROOT, imports_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN_FILES = {
    "train.py": """
from tokentar import ShardLoader
import shard_writer, utils
loader = ShardLoader("set", batch_size=2, rank=0, world_size=1)
print(shard_writer.MINE, utils.MINE, len(loader), sum(len(batch["input_ids"]) for batch in loader))
""",
    "utils.py": "MINE = 'my utils'\n",
    "shard_writer.py": "MINE = 'my writer'\n",
}
RENDEZVOUS = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
MODEL = '{"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 1, "n_positions": 16}'


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that must end well, without the paths that lead this process to the sources."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources, as the build leaves files beside them."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("shard_writer", "train"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", folder, cwd=folder)
    (path,) = (folder / "dist").glob("tokentar-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder bin/ of a bare environment with the wheel, which finds its dependencies where this interpreter has them."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)  # fmt: skip
    (site,) = folder.glob("lib/python*/site-packages")
    # of a folder that a .pth file adds, no .pth file is read: neither is the one of an editable install of the sources
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


@pytest.fixture(scope="module")
def own_folder(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with files of the names that our folders have, and a set that the command wrote there."""
    folder = tmp_path_factory.mktemp("user")
    for name, content in OWN_FILES.items():
        (folder / name).write_text(content)
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    jsonl(folder / "a.jsonl", [f"document {number:02}" for number in range(40)])  # 12 tokens each
    flags = "--input a.jsonl --tokenizer tokenizer --output set --seq_length 16 --num_shards 3 --workers 1"
    written = run(installed / "tokentar", "write", *flags.split(), cwd=folder).stdout
    assert "480 tokens = 30 sequences × 16 + 0 left over; 3 shards" in written
    return folder


@pytest.mark.processes
def test_the_wheel_holds_tokentar_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"tokentar", f"tokentar-{PROJECT['version']}.dist-info"}
    assert {"tokentar/py.typed", "tokentar/shard_writer/py.typed", "tokentar/train/py.typed"} <= set(names)


@pytest.mark.processes
def test_the_commands_run_beside_a_users_own_files(installed: Path, own_folder: Path) -> None:
    command = installed / "tokentar"
    assert "── sequence 0 · " in run(command, "show", "set", "--rows", "1", cwd=own_folder).stdout
    assert "3 shards" in run(command, "verify", "set", cwd=own_folder).stdout
    assert "30 sequences × 16 tokens in 3 shards" in run(command, "plan", "--shards", "set", cwd=own_folder).stdout
    assert "2 shards" in run(command, "reshard", "set", "resharded", "--num_shards", "2", cwd=own_folder).stdout
    python = installed / "python"
    assert "all as written" in run(python, "-m", "tokentar", "verify", "resharded", cwd=own_folder).stdout


@pytest.mark.processes
def test_a_users_own_train_py_reads_a_set(installed: Path, own_folder: Path) -> None:
    printed = run(installed / "python", "train.py", cwd=own_folder).stdout
    assert printed == "my writer my utils 15 30\n"


@pytest.mark.processes
def test_torchrun_trains_with_tokentar_and_not_with_a_users_train_py(installed: Path, own_folder: Path) -> None:
    torchrun = [installed / "python", "-m", "torch.distributed.run", *RENDEZVOUS, "-m", "tokentar.train"]
    help_text = run(*torchrun, "--help", cwd=own_folder).stdout
    assert "--separate_documents" in help_text
    assert "my writer" not in help_text
    flags = ["--shards", "set", "--output_dir", "run", "--max_steps", "1", "--per_device_train_batch_size", "2"]
    run(*torchrun, *flags, "--model_config", MODEL, "--streams", "1", "--use_cpu", "true", cwd=own_folder)
    assert (own_folder / "run" / "model.safetensors").exists()


@pytest.mark.processes
def test_the_package_comes_from_the_wheel(installed: Path, own_folder: Path) -> None:
    for module in ("tokentar", "tokentar.shard_writer", "tokentar.train"):
        place = run(installed / "python", "-c", f"import {module}; print({module}.__file__)", cwd=own_folder).stdout
        assert Path(place).is_relative_to(installed.parent)


def test_the_dependencies_are_what_the_code_imports() -> None:
    imported = {name.split(".")[0] for path in MODULES.values() for name in imports_of(path)}
    of_module = packages_distributions()
    needed = {canonicalize_name(of_module[name][0]) for name in imported & set(of_module)} - {"tokentar"}
    extras = {name: names_of(lines) for name, lines in PROJECT["optional-dependencies"].items() if name != "dev"}
    core = names_of(PROJECT["dependencies"])
    optional = set().union(*extras.values()) - core
    assert core == needed - optional - {"botocore"}  # which boto3 brings


def test_the_quickstart_installs_no_tools_of_development() -> None:
    command = ["make", "--dry-run", "--always-make", "quickstart"]
    steps = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    installs = [line.split(" install ")[1] for line in steps if "pip install" in line]
    assert installs[0].endswith("--constraint constraints.txt torch")  # before what depends on it
    assert installs[1].endswith("--constraint constraints.txt --editable '.[report]'")
    assert len(installs) == 2


def names_of(lines: list[str]) -> set[str]:
    """The names of some requirements."""
    return {canonicalize_name(Requirement(line).name) for line in lines}
