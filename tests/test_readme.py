"""README and docs: their programs run as they are printed, and the tests, flags and files that they name exist.

The programs run one after the other in one folder, README first; those that use ranks run on two of them.
"""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import train_main
from tests.helpers.tokenizers import byte_tokenizer
from tests.torchrun.start import ROOT
from tokentar import ShardLoader, open_shards
from tokentar.__main__ import COMMANDS, main
from tokentar.train.trainer.training_arguments import HARMLESS, REFUSED, TESTED, TRAINERS_OWN

README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, *(ROOT / "docs" / f"{name}.md" for name in ("writing", "reading", "training", "mixtures", "format"))]
WITH_LINKS = [README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "recipes").rglob("*.md"))]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
TORCHRUN += ["--rdzv-endpoint", "localhost:0"]
OF_OTHERS = {
    *("address", "constraint", "generate", "head", "help", "nnodes", "nodes", "port"),  # pip, ray, sbatch, torchrun
    *("clients", "groups", "megabytes", "plot", "rounds"),  # python -m tests.benchmarks
}


def programs(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def run(program: str, folder: Path, name: str) -> str:
    (folder / name).write_text(program)
    on_ranks = "init_process_group" in program or "Accelerator" in program
    command = [sys.executable, *(TORCHRUN if on_ranks else []), name]
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def printed(folder: Path) -> dict[str, list[str]]:
    """What the programs of each page print."""
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    return {
        page.stem: [run(text, folder, f"{page.stem}_{number}.py") for number, text in enumerate(programs(page))]
        for page in PAGES
    }


def test_every_program_of_the_docs_is_run() -> None:
    assert {page for page in [README, *DOCS] if programs(page)} == set(PAGES)
    assert [len(programs(page)) for page in PAGES] == [1, 1, 2, 1, 1, 1]


@pytest.mark.processes
def test_the_programs_that_write_print_what_they_wrote(folder: Path, printed: dict[str, list[str]]) -> None:
    for page, output, documents in (("README", "out", 10_000), ("writing", "best-fit", 1_000)):
        totals = open_shards(folder / output).info.totals
        tokens = sum(len(f"document number {i}") + 1 for i in range(documents))  # a token a byte, and EOS
        assert (totals.documents, totals.tokens) == (documents, tokens)
        assert printed[page] == [f"{totals}\n"]


@pytest.mark.processes
def test_the_loops_read_on_two_ranks(folder: Path, printed: dict[str, list[str]]) -> None:
    ddp, accelerate = printed["reading"]
    assert sorted(re.findall(r"rank \d goes on", ddp)) == ["rank 0 goes on", "rank 1 goes on"]
    batches = len(ShardLoader(folder / "out", batch_size=8, rank=0, world_size=2))
    read = sorted(re.findall(r"rank \d read \d+ batches", accelerate))  # ranks may end each other's lines
    assert read == [f"rank {rank} read {batches} batches" for rank in (0, 1)]


@pytest.mark.processes
def test_the_trainer_takes_its_steps_and_other_tools_read_the_same_ids(printed: dict[str, list[str]]) -> None:
    assert printed["training"][0].endswith("4 steps\n")
    shown = re.findall(r"\[.*?\]", printed["format"][0])
    assert len(shown) == 2
    assert len(set(shown)) == 1


@pytest.mark.processes
def test_a_mixture_reads_the_shares_of_its_weights(printed: dict[str, list[str]]) -> None:
    assert printed["mixtures"] == [
        f"{24 * 7} {24 * 3}\n"
    ]  # 24 streams, 10 rounds, each stream exact after a period of 10


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("tested", set(TESTED)),
        ("trainer", set(TRAINERS_OWN)),
        ("harmless", set(HARMLESS)),
        ("refused", set(REFUSED)),
    ],
)
def test_the_page_of_training_arguments_shows_each_table(group: str, names: set[str]) -> None:
    """That these four are all fields is tested beside them."""
    assert f"```{{training-arguments}} {group}\n" in (ROOT / "docs/training-arguments.md").read_text()
    text = runpy.run_path(str(ROOT / "docs/conf.py"))["training_arguments"](group)
    assert names <= set(re.findall(r"`(\w+)`", text))


def test_the_readme_is_short_and_names_a_test_for_each_guarantee() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    named = re.findall(r"^\| G(\d+) \|.*`(tests/\S+\.py)::(test_\w+)` \|$", text, re.MULTILINE)
    assert [int(number) for number, _, _ in named] == list(range(1, 13))
    for _, file, test in named:
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}::{test}"


@pytest.mark.parametrize("page", WITH_LINKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_a_page_links_to_are_there(page: Path) -> None:  # of docs/, Sphinx checks it
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_the_flags_of_the_docs_are_flags_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    for command in sorted(set(COMMANDS) - {"train"}):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
    with pytest.raises(SystemExit, match="0"):
        train_main(["--help"])
    known = set(re.findall(r"--([a-z_]+)", capsys.readouterr().out)) | OF_OTHERS
    for page in [*WITH_LINKS, *DOCS]:
        text = re.sub(r"## From open_lm\n.*?(?=\n## |\Z)", "", page.read_text(), flags=re.DOTALL)  # flags of open_lm
        assert set(re.findall(r"(?<![\w-])--([a-z_]+)(?![\w-])", text)) <= known, page
