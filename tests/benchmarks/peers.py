"""The peers: which releases are measured, and a virtual environment for each. None is a dependency of the project.

An environment is made once below the folder that `--venvs` names, and found again there. `torch` is asked for by its
exact version wherever a peer needs it, as what depends on it would otherwise bring another, far larger build.
"""

import subprocess
import venv
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.measure import ROOT

_TORCH, _FASTOKENS, _TOKENIZERS = "torch==2.13.0", "fastokens==0.3.5", "tokenizers==0.23.3"
PEERS = {
    "datatrove": ("datatrove[io,processing]==0.10.1", _TOKENIZERS, _FASTOKENS),
    "litdata": ("litdata==0.2.76", _TORCH, _TOKENIZERS, _FASTOKENS),
    "mosaicml-streaming": ("mosaicml-streaming==0.13.0", _TORCH),
    "gigatoken": ("gigatoken==0.10.0", "numpy==2.4.6"),
    "webdataset": ("webdataset==1.0.2", _TORCH),
    "datasets": ("datasets==5.2.0", _TORCH),
    "s3fs": ("s3fs==2026.9.0",),
}
_DONE = "installed.txt"  # what was installed; written last
_MOST_SECONDS = 1200


class NotInstalledError(Exception):
    """A peer could not be installed; the text is the end of what pip said."""


def add_options(parser: ArgumentParser) -> None:
    """What all benchmarks against peers have."""
    parser.add_argument(
        "--venvs",
        type=Path,
        metavar="DIR",
        default=ROOT / "build/benchmarks/venvs",
        help="where the peers are installed, once (default: %(default)s)",
    )


def label(name: str) -> str:
    """Name and version, for tables."""
    return f"{name} {PEERS[name][0].rpartition('==')[2]}"


def interpreter(name: str, folder: Path) -> Path:
    """The Python of a peer's environment, which is made if there is none. Raises NotInstalledError."""
    home, packages = folder.absolute() / name, PEERS[name]
    python, done = home / "bin/python", home / _DONE
    wanted = "\n".join(packages)
    if not done.exists() or done.read_text() != wanted:
        venv.create(home, clear=True, with_pip=True)
        _install(python, packages)
        done.write_text(wanted)
    return python


def _install(python: Path, packages: Sequence[str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--quiet", *packages]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_MOST_SECONDS)
    except subprocess.CalledProcessError as error:
        raise NotInstalledError((error.stderr.strip().splitlines() or ["pip failed"])[-1]) from None
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"pip took more than {_MOST_SECONDS} s") from None


def install(names: Sequence[str], folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """The interpreters of those that can be had, and of the others why not, both by name."""
    found: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            found[name] = interpreter(name, folder)
        except NotInstalledError as error:
            missing[name] = str(error)
    return found, missing
