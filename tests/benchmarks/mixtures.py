"""mixtures: 20 sets mixed by weights against one set of the same rows, litdata's combined data set and MDS streams; positions; a trace.

The rows of a corpus are cut into 20 equal sets, in the form of each contender; set i has weight i + 1 of 210. What is counted
are int64 batches of 8 rows of 2048 tokens from the page cache, without workers, start-up and warm-up. The second table is
of one fresh process: the position of a mixture of 20 sources at 90 % of 10^9 sequences, from its weights to the row of each
stream of each source, and one step of 512 sequences of a set of 10,000 shards traced to its documents, imports left out.
"""

import json
import time
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path

import numpy as np

from tests.benchmarks import peers
from tests.benchmarks.corpus import train_tokenizer, write_corpus
from tests.benchmarks.measure import interleaved, median_ratio, python, run, spread, table, verdict
from tests.benchmarks.peers_read import last_figure, our_set
from tokentar import open_shards
from tokentar.shard_writer.format.dataset_info import DatasetInfo, Totals
from tokentar.shard_writer.format.manifest import Manifest, ShardEntry, first_numbers, write_manifest
from tokentar.shard_writer.format.shards import shard_image
from tokentar.shard_writer.packing.layout import even_split
from tokentar.shard_writer.storage.files import put

DEFAULT_MEGABYTES = 150
PACKAGES = ("torch", "numpy", "webdataset")
SOURCES = 20
_SECONDS, _SHARDS_EACH = 2.0, 8
_MODULES = {"litdata": "litdata", "mosaicml-streaming": "mosaicml"}
_MOST_MS, _MOST_SECONDS = 50, 2.0


def add_options(parser: ArgumentParser) -> None:
    """See peers."""
    peers.add_options(parser)
    parser.add_argument(
        "--shards", type=int, default=10_000, help="shards of the set that is traced (default: %(default)s)"
    )


def report(options: Namespace, folder: Path) -> str:
    """Measure; returns Markdown."""
    found, missing = peers.install(list(_MODULES), options.venvs)
    corpus = write_corpus(folder / "corpus.jsonl", options.megabytes, options.corpus)
    tokenizer = train_tokenizer(corpus.path, folder / "tokenizer")
    one = our_set(folder, "one", corpus.path, tokenizer, ["--num_shards", str(SOURCES * _SHARDS_EACH)])
    texts = [rates(contenders(folder, one, found), options.rounds)]
    many = our_set(folder, "many", corpus.path, tokenizer, ["--num_shards", str(options.shards)])
    texts.append(positions(many))
    return "\n\n".join(texts + [f"Not installed: {name}: {why}." for name, why in missing.items()])


def contenders(folder: Path, one: Path, found: dict[str, Path]) -> dict[str, list[str]]:
    """The command that reads with each contender: it prints tokens a second."""
    rows, manifest = np.load(folder / "one.npy", mmap_mode="r"), open_shards(one)
    bounds = even_split(len(rows), SOURCES).tolist()
    tail = ["0", str(_SECONDS)]
    commands = {
        "one set": [*python("-m", "tests.benchmarks.readers"), "ours", "rate", str(one), *tail],
        "ours": [*python("-m", "tests.benchmarks.readers"), "ours", "mixed", str(folder / "ours-mixed"), *tail],
    }
    for name, interpreter in found.items():
        words = [str(interpreter), "-m", f"tests.benchmarks.peer_{_MODULES[name]}"]
        commands[name] = [*words, "mixed", str(folder / f"{name}-mixed"), *tail]
    for number in range(SOURCES):
        part = folder / f"{number:02d}.npy"
        np.save(part, rows[bounds[number] : bounds[number + 1]])
        write_rows(folder / "ours-mixed" / f"{number:02d}", np.load(part), manifest.info)
        for name in found:
            output = folder / f"{name}-mixed" / f"{number:02d}"
            run([*commands[name][:3], "prepare", str(part), str(output), str(_SHARDS_EACH)])
    return commands


def write_rows(folder: Path, rows: np.ndarray, info: DatasetInfo) -> None:  # type: ignore[type-arg]
    """A set of some rows, which another set says how to write."""
    folder.mkdir(parents=True)
    bounds, entries = even_split(len(rows), _SHARDS_EACH).tolist(), []
    for index in range(_SHARDS_EACH):
        first, stop = bounds[index : index + 2]
        name = f"train-{index:06d}"
        size, digest = put(folder / f"{name}.tar", [shard_image(rows[first:stop], first, info.row_format)])
        entries.append(ShardEntry(shard=name, split="train", num_sequences=stop - first, bytes=size, xxh3=digest))
    totals = Totals(documents=0, tokens=rows.size, sequences=len(rows), tail=0)
    plain = DatasetInfo(
        seq_length=info.seq_length,
        dtype=info.dtype,
        tokenizer=info.tokenizer,
        source={},
        settings={},
        seed=0,
        splits={"train": totals},
        skipped={},
    )
    write_manifest(Manifest(folder, plain, tuple(entries), first_numbers(entries)))


def rates(commands: dict[str, list[str]], rounds: int) -> str:
    """Tokens a second."""
    calls = {name: partial(lambda command: last_figure(run(command)), command) for name, command in commands.items()}
    found = interleaved(rounds, calls)
    targets = {"one set": 0.9}
    lines = []
    for name, seen in found.items():
        ratio, target = median_ratio(found["ours"], seen), targets.get(name, 1.0)
        words = "" if name == "ours" else verdict(ratio >= target, f"≥ {target}")
        label = peers.label(name) if name in peers.PEERS else name
        lines.append([label, spread([rate / 1e6 for rate in seen], "{:,.1f}"), f"{ratio:.2f}", words])
    return table(["reader", "M tokens/s, median (range)", "ours as a multiple, median of pairs", "target"], lines)


def positions(many: Path) -> str:
    """The figures of one process."""
    seen = json.loads(run(python("-m", "tests.benchmarks.mixtures", many)).output.splitlines()[-1])
    return table(
        ["what", "time", "target"],
        [
            [
                "position of a mixture",
                f"{seen['position']:.1f} ms",
                verdict(seen["position"] < _MOST_MS, f"< {_MOST_MS} ms"),
            ],
            [
                "trace of a step",
                f"{seen['trace']:.2f} s",
                verdict(seen["trace"] < _MOST_SECONDS, f"< {_MOST_SECONDS} s"),
            ],
        ],
    )


def main(folder: str) -> None:
    """Measure the second table."""
    from tokentar.shard_writer.format import documents
    from tokentar.train.data.loader import ShardLoader
    from tokentar.train.order.mixture import Mixture, Stage
    from tokentar.train.trace.locate import Locator

    start = time.perf_counter()
    counts = Mixture((Stage(0, tuple(range(1, SOURCES + 1))),), 192, 0).counts(9 * 10**8)
    position = time.perf_counter() - start
    assert counts.sum() == 9 * 10**8
    start = time.perf_counter()
    locator = Locator(ShardLoader(folder, batch_size=1, rank=0, world_size=1).reading)
    found = locator.sequences(0, range(512 * 3, 512 * 4))
    behind = documents.pieces(locator.manifests[""], [sequence.number for sequence in found])
    trace = time.perf_counter() - start
    assert len(behind) == 512
    assert all(behind.values())
    print(json.dumps({"position": position * 1e3, "trace": trace}))


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
