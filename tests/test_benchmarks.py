"""The benchmarks' own arithmetic: pairs, rounds, table, corpus. Nothing is timed here."""

from pathlib import Path

import pytest

from tests.benchmarks.__main__ import parse
from tests.benchmarks.corpus import read_texts, shuffled_lines, write_corpus
from tests.benchmarks.measure import interleaved, median_ratio, python, run, spread, table, verdict
from tests.benchmarks.write import Job, work_rates


def test_ratio_is_the_median_over_pairs() -> None:
    assert median_ratio([10, 30, 8], [1, 2, 4]) == 10
    with pytest.raises(ValueError, match="shorter"):
        median_ratio([1, 2], [1])


def test_every_other_round_runs_backwards(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []
    results = interleaved(2, {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"})
    assert (calls, results) == (["a", "b", "b", "a"], {"a": [1, 4], "b": [2, 3]})
    assert "round 2 of 2: a" in capsys.readouterr().err


def test_table_is_markdown() -> None:
    assert table(["x", "y"], [["a", spread([1000])], ["b", spread([1, 3, 2])]]) == (
        "| x | y |\n| --- | ---: |\n| a | 1,000 |\n| b | 2 (1 … 3) |"
    )
    assert (verdict(True, "≥ 20"), verdict(False, "≥ 20")) == ("≥ 20: met", "≥ 20: MISSED")


def test_start_up_is_taken_off() -> None:
    assert work_rates([Job(1100, 3.0), Job(1100, 4.0)], [Job(100, 2.0), Job(100, 2.0)]) == [1000, 500]
    with pytest.raises(SystemExit, match="more --megabytes"):
        work_rates([Job(1100, 3.0)], [Job(100, 4.0)])


def test_corpus_repeats_no_text(tmp_path: Path) -> None:
    for name in ("one", "same", "two"):
        text = "".join(f"{name[0]} {line}\n" for line in range(20))
        (tmp_path / f"{name}.txt").write_text(text if name != "same" else "\n".join("abcdefg"))
    (tmp_path / "copy.txt").write_text((tmp_path / "one.txt").read_text())
    corpus = write_corpus(tmp_path / "corpus.jsonl", 0.001, str(tmp_path / "*.txt"))
    texts = list(read_texts(corpus.path, 1 << 20))
    assert len(texts) == len(set(texts)) == corpus.documents
    assert corpus.passes > 1
    assert corpus.text_bytes == sum(len(text.encode()) for text in texts) >= 1000
    assert sorted(shuffled_lines("1\n2\n3\n", "seed")) == sorted("1\n2\n3\n")


def test_memory_is_that_of_the_tree_of_processes() -> None:
    done = run(python("-c", "import time; held = bytearray(64 << 20); time.sleep(0.3); print('ok')"), watch_memory=True)
    assert done.output == "ok\n"
    assert done.peak_sum >= done.peak_max > 64 << 20
    with pytest.raises(SystemExit, match="exit status 3"):
        run(python("-c", "raise SystemExit(3)"))


@pytest.mark.parametrize("name", ["write", "read", "memory"])
def test_each_benchmark_has_the_same_options(name: str) -> None:
    options = vars(parse([name, "--megabytes", "5", "--corpus", "*.txt"]))
    assert {key: options[key] for key in ("megabytes", "corpus", "rounds", "workers")} == {
        "megabytes": 5.0,
        "corpus": "*.txt",
        "rounds": 3,
        "workers": 2,
    }
