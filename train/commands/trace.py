"""tokentar trace: the sequences and documents behind a training step, the steps of a document, and a run against its order."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format import documents
from tokentar.shard_writer.format.documents import Piece
from tokentar.train.data.loader import ShardLoader
from tokentar.train.data.sources import parse_sources
from tokentar.train.trace import audit
from tokentar.train.trace.history import History, read_legs
from tokentar.train.trace.locate import Locator
from tokentar.train.trace.locate import Sequence as Located
from tokentar.train.trainer import checkpoint

DESCRIPTION = """What stands behind a training step, from the order of reading and the provenance beside the shards.

Steps are numbered as in the log of training: step 1 is the first."""


def main(prog: str, argv: Sequence[str]) -> int:
    """Print what was asked for; 1 when --check finds that a run was trained on something else than its order says."""
    arguments = _parser(prog).parse_args(argv)
    if arguments.check:
        return _check(arguments)
    asked = [name for name in ("step", "sequence", "document") if getattr(arguments, name)]
    if len(asked) != 1:
        raise SettingError(
            f"trace: {' and '.join(asked) or 'nothing'}, needed: one of --step, --sequence, --document, --check"
        )
    for record in {"step": _steps, "sequence": _sequences, "document": _documents}[asked[0]](arguments):
        print(json.dumps(record) if arguments.json else _words(record))
    return 0


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--shards", required=True, nargs="+", action="extend", help="as in training")
    parser.add_argument(
        "--checkpoint", help="a checkpoint of the job, which tells its order: the last one knows all steps"
    )
    parser.add_argument("--step", help="a step, or a range such as 100:110 (110 too)")
    parser.add_argument("--sequence", help="key of a sequence; of a mixture SOURCE/KEY")
    parser.add_argument("--document", help="a document as SOURCE:LINE, as --step prints it")
    parser.add_argument(
        "--epochs", type=int, help="with --document and --sequence: epochs to look at (default: those so far)"
    )
    parser.add_argument(
        "--text", action="store_true", help="print the text of each piece, decoded by the tokenizer of the set"
    )
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--check", metavar="DIR", help="compare the folder that --audit wrote with the order")
    return parser


def _check(arguments: argparse.Namespace) -> int:
    runs = audit.read_runs(arguments.check)
    loader = _loader(arguments.shards, runs[0].state)
    found = list(audit.faults(arguments.check, loader))
    for fault in found:
        print(fault, file=sys.stderr)
    starts, last, sequences = audit.totals(arguments.check)
    summary = {"starts": starts, "steps": last, "sequences": sequences, "faults": len(found)}
    text = f"{arguments.check}: {starts} starts, {last:,} steps, {sequences:,} sequences, {len(found)} faults"
    print(json.dumps(summary) if arguments.json else text)
    return 1 if found else 0


def _loader(shards: Sequence[str], state: Mapping[str, Any]) -> ShardLoader:
    """A loader of one rank in the order of a state."""
    settings: dict[str, Any] = {"batch_size": 1, "seed": state["seed"], "rank": 0, "world_size": 1, "num_workers": 0}
    if state["order"] == "mixture":
        weights = state["stages"][-1]["weights"]
        sources = {name: (place, weights.get(name, 0.0)) for name, (place, _) in parse_sources(shards).items()}
        loader = ShardLoader(sources, streams=state["streams"], **settings)
    elif len(shards) == 1:
        loader = ShardLoader(shards[0], order=state["order"], streams=state["streams"], **settings)
    else:
        raise SettingError(f"shards: {len(shards)} sets, but the job read one")
    loader.load_state_dict(dict(state))
    return loader


def _job(arguments: argparse.Namespace) -> tuple[ShardLoader, History]:
    """The job that a checkpoint is of."""
    if not arguments.checkpoint:
        raise SettingError("checkpoint: none, needed: one of the job, which tells its order")
    state = checkpoint.read_position(Path(arguments.checkpoint))
    loader = _loader(arguments.shards, state)
    return loader, History(read_legs(state), None if loader.endless else loader.order.samples)


def _steps(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    loader, history = _job(arguments)
    locator = Locator(loader.reading)
    for step in _range(arguments.step):
        epoch, samples = history.samples_of(step)
        found = locator.sequences(epoch, samples)
        behind = _behind(locator, found)
        for sample, sequence in zip(samples, found, strict=True):
            place = {"step": step, "epoch": epoch, "sample": sample}
            yield place | _record(locator, sequence, behind[sequence], arguments.text)


def _range(text: str) -> range:
    first, colon, last = text.partition(":")
    if not first.isdecimal() or (colon and not last.isdecimal()):
        raise SettingError(f"step: {text!r}, needed: a step such as 100, or a range such as 100:110")
    return range(int(first), int(last or first) + 1)


def _sequences(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    sequence = Located.parse(arguments.sequence)
    loader, history = _job(arguments) if arguments.checkpoint else (_any_order(arguments.shards), None)
    locator = Locator(loader.reading)
    locator.shard_of(sequence)  # or it is none
    behind = _behind(locator, [sequence])
    yield _record(locator, sequence, behind[sequence], arguments.text) | _when(
        arguments, loader, history, locator, sequence
    )


def _any_order(shards: Sequence[str]) -> ShardLoader:
    """A loader of the sets that are named, in any order: only what is in them matters."""
    is_set = len(shards) == 1 and "=" not in shards[0]
    sets: Any = shards[0] if is_set else parse_sources(shards)
    return ShardLoader(sets, batch_size=1, rank=0, world_size=1)


def _documents(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    loader, history = _job(arguments)
    locator, document = Locator(loader.reading), documents.parse_document(arguments.document)
    found = [
        Located(name, number)
        for name, manifest in locator.manifests.items()
        for number in documents.sequences(manifest, [document])[document]
    ]
    if not found:
        raise SettingError(
            f"document: {arguments.document!r}: not in these sets; --step and --sequence print names of documents"
        )
    behind = _behind(locator, found)
    for sequence in found:
        pieces = [piece for piece in behind[sequence] if (piece.source, piece.place) == document]
        yield _record(locator, sequence, pieces, arguments.text) | _when(arguments, loader, history, locator, sequence)


def _when(
    arguments: argparse.Namespace, loader: ShardLoader, history: History | None, locator: Locator, sequence: Located
) -> dict[str, Any]:
    """The steps at which a sequence was or will be trained on, of the epochs so far or of those asked for."""
    if history is None:
        return {}
    epochs = arguments.epochs or _epochs_so_far(loader, sequence.source)
    found = locator.samples(sequence, range(epochs))
    steps = [None if sample is None else history.step_of(epoch, sample) for epoch, sample in found]
    return {"steps": [{"epoch": epoch, "step": step} for epoch, step in enumerate(steps)]}


def _epochs_so_far(loader: ShardLoader, source: str) -> int:
    """Epochs that a set has begun."""
    if loader.order.kind == "epoch":
        return loader.epoch + 1
    if source:
        state = loader.state_dict()["sources"][source]
        return int(state["epoch"]) + 1
    return loader.position // loader.order.samples + 1


def _behind(locator: Locator, sequences: Sequence[Located]) -> dict[Located, list[Piece]]:
    found: dict[Located, list[Piece]] = {}
    for name, manifest in locator.manifests.items():
        mine = {sequence.number for sequence in sequences if sequence.source == name}
        if mine:
            pieces = documents.pieces(manifest, mine)
            found |= {Located(name, number): of_sequence for number, of_sequence in pieces.items()}
    return found


def _record(locator: Locator, sequence: Located, pieces: Sequence[Piece], text: bool) -> dict[str, Any]:
    shard, row = locator.shard_of(sequence)
    found = [vars(piece) | ({"text": _text(locator, sequence, piece)} if text else {}) for piece in pieces]
    return {"sequence": sequence.key, "shard": shard, "row": row, "documents": found}


def _text(locator: Locator, sequence: Located, piece: Piece) -> str:
    from tokentar.shard_writer.tokenizing.loading import load_matching_tokenizer

    manifest = locator.manifests[sequence.source]
    if (tokenizer := _TOKENIZERS.get(sequence.source)) is None:
        tokenizer = _TOKENIZERS[sequence.source] = load_matching_tokenizer(manifest)
    shard, row = locator.shard_of(sequence)
    index = [entry.file_name for entry in manifest.shards].index(shard)
    ids = manifest.open(index).rows[row][piece.start : piece.start + piece.length]
    return str(tokenizer.decode(ids.tolist()))


_TOKENIZERS: dict[str, Any] = {}  # by source


def _words(record: dict[str, Any]) -> str:
    """A record as lines for people."""
    place = f"step {record['step']}, epoch {record['epoch']}, sample {record['sample']}: " if "step" in record else ""
    lines = [f"{place}sequence {record['sequence']}, {record['shard']} row {record['row']}"]
    for each in record["documents"]:
        lines.append(f"  tokens {each['start']}–{each['start'] + each['length'] - 1}: {each['source']}:{each['place']}")
        lines += [f"    {line}" for line in each.get("text", "").splitlines()]
    for when in record.get("steps", ()):
        lines.append(f"  epoch {when['epoch']}: " + (f"step {when['step']}" if when["step"] else "left out"))
    return "\n".join(lines)
