"""The benchmarks' own arithmetic: pairs, rounds, table, corpus. Nothing is timed here."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.benchmarks import clock, peers
from tests.benchmarks.__main__ import parse
from tests.benchmarks.corpus import END_OF_TEXT, read_texts, shuffled_lines, split_lines, write_corpus
from tests.benchmarks.measure import interleaved, median_ratio, python, run, spread, table, verdict
from tests.benchmarks.peers_write import OURS, Writer, figures
from tests.benchmarks.scaling import settings
from tests.benchmarks.step import by_source
from tests.benchmarks.write import Job, notes, work_rates


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
    assert all(map(math.isnan, work_rates([Job(1100, 3.0)], [Job(100, 4.0)])))


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


def test_texts_with_the_end_of_text_mark_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("kept")
    (tmp_path / "b.txt").write_text(f"left {END_OF_TEXT} out")
    corpus = write_corpus(tmp_path / "corpus.jsonl", 4e-6, str(tmp_path / "*.txt"))
    assert (list(read_texts(corpus.path, 100)), corpus.documents) == (["kept"], 1)


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_are_whole_lines_of_the_same_bytes(tmp_path: Path, parts: int) -> None:
    content = b"".join(b"%d\n" % 10**number for number in range(9))  # 54 bytes, lines of 2 to 10
    (tmp_path / "all").write_bytes(content)
    split_lines(tmp_path / "all", tmp_path / "parts", parts)
    found = [path.read_bytes() for path in sorted((tmp_path / "parts").iterdir())]
    assert (len(found), b"".join(found)) == (parts, content)
    assert all(part.endswith(b"\n") for part in found if part)
    assert max(map(len, found)) <= 54 / parts + 11


def test_writers_are_compared_pair_by_pair() -> None:
    writers = {
        OURS: Writer(lambda *_: [], lambda *_: 0),
        "peer": Writer(lambda *_: [], lambda *_: 0, target=3),
        "bare": Writer(lambda *_: [], lambda *_: 0, target=0.9, times_itself=True),
    }
    starts = {OURS: [Job(0, 1.0), Job(0, 1.0)], "peer": [Job(0, 2.0), Job(0, 2.0)], "bare": [Job(0, 9.0), Job(0, 9.0)]}
    whole = {
        OURS: [Job(8 * 10**6, 3.0), Job(8 * 10**6, 2.0)],  # 4 and 8 million tokens a second beyond the start
        "peer": [Job(8_000_008, 10.0), Job(8_000_008, 6.0)],  # 1 and 2; a token more in a million
        "bare": [Job(8 * 10**6, 1.0), Job(8 * 10**6, 1.0)],  # 8 and 8, its own clock
    }
    lines = figures(writers, whole, starts, dict.fromkeys(writers, 1.0)).splitlines()
    assert lines[2].startswith("| ours | 8,000,000 | 6.00 (4.00 … 8.00) | 1.00 |")
    assert lines[3] == "| peer | 8,000,008 | 1.50 (1.00 … 2.00) | 4.00 | ≥ 3: met | 8.0 (6.0 … 10.0) | 3.17 | 1 |"
    assert lines[4] == "| bare | 8,000,000 | 8.00 (8.00 … 8.00) | 0.75 | ≥ 0.9: MISSED | 1.0 (1.0 … 1.0) |  | 1 |"
    assert lines[5:] == ["", "peer: +8 tokens against ours (+1.00 per million)"]


@pytest.mark.parametrize(
    ("tokens", "note"),
    [
        ([8_000_000, 8_000_000], []),
        ([8_000_000, 7_999_988], ["peer: -12 tokens against ours (-1.50 per million)"]),
        ([8_000_800, 8_000_000], ["peer: +800 tokens against ours (+100.00 per million)"]),
        (
            [8_000_801, 8_000_000],
            [
                "WARNING: more than 0.0001 of the tokens, so this was not the same job: "
                "peer: +801 tokens against ours (+100.12 per million)"
            ],
        ),
    ],
)
def test_another_number_of_tokens_is_reported_and_the_figures_are_still_printed(
    tokens: list[int], note: list[str]
) -> None:
    whole = {OURS: [Job(8_000_000, 2.0)] * 2, "peer": [Job(number, 4.0) for number in tokens]}
    assert notes(whole, {}) == note
    writers = dict.fromkeys(whole, Writer(lambda *_: [], lambda *_: 0))
    starts = {name: [Job(0, 1.0)] * 2 for name in whole}
    lines = figures(writers, whole, starts, dict.fromkeys(writers, 1.0)).splitlines()
    assert [line for line in lines[4:] if line] == note
    assert "| 3.00 |" in lines[3]  # ours 8 million a second beyond the start, the peer 8/3 million


def test_a_corpus_that_is_too_small_is_reported_below_the_figures() -> None:
    whole = {OURS: [Job(1000, 2.0)]}
    assert notes(whole, {OURS: [500.0]}) == []
    assert "more --megabytes" in notes(whole, {OURS: [math.nan]})[0]


def test_reading_goes_on_over_epochs() -> None:
    begun: list[str] = []

    def epoch() -> Iterator[torch.Tensor]:
        begun.append("epoch")
        return iter([torch.zeros(5), torch.zeros(5)])

    clock.tokens_per_second(epoch, 0.01)  # far longer than two batches take
    assert len(begun) > 1
    begun.clear()
    clock.seconds_to_first(lambda: epoch)
    assert begun == ["epoch"]


def test_peers_are_pinned_and_bring_no_other_torch() -> None:
    for packages in peers.PEERS.values():
        assert all("==" in package for package in packages)
        assert [package for package in packages if package.startswith("torch")] in ([], ["torch==2.13.0"])
    assert peers.label("datatrove") == "datatrove 0.10.1"


def test_every_other_pair_of_turns_is_the_other_way_round() -> None:
    turns = [(float(number), 0.0, 0.0) for number in range(1, 7)]
    ours, constant = by_source(turns)
    assert [first for first, *_ in ours] == [1, 4, 5]
    assert [first for first, *_ in constant] == [2, 3, 6]


def test_each_setting_of_scaling_has_its_own_name() -> None:
    names = [setting.name for setting in settings()]
    assert len(names) == len(set(names)) == 3 + 3 + 4 + 2


@pytest.mark.parametrize(
    "name", ["write", "read", "memory", "peers-write", "peers-read", "scaling", "resume", "step", "storage"]
)
def test_each_benchmark_has_the_same_options(name: str) -> None:
    options = vars(parse([name, "--megabytes", "5", "--corpus", "*.txt"]))
    assert {key: options[key] for key in ("megabytes", "corpus", "rounds", "workers")} == {
        "megabytes": 5.0,
        "corpus": "*.txt",
        "rounds": 3,
        "workers": 2,
    }
