"""Several sets that are mixed by weights: which they are, whether they fit each other, and which weights hold when."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.train.data.shard_patterns import Shards, select_shards
from tokentar.train.order import reading_order
from tokentar.train.order.mixture import MixedOrder, Mixture, Stage
from tokentar.train.order.schedule import whole_shares
from tokentar.train.order.streams import default_streams

STOPPING_STRATEGIES = ("never", "first_exhausted")
_NAME = re.compile(r"[\w.-]+")
Weights = dict[str, float]


@dataclass(frozen=True)
class WeightsFrom:
    """Weights by source that hold from sample number `start` of the job on."""

    start: int
    weights: Weights

    def is_like(self, other: "WeightsFrom") -> bool:
        """Whether both give every source the same share."""
        return _shares(self.weights) == _shares(other.weights)


@dataclass(frozen=True)
class Sources:
    """Sets by name, the weights that they begin with, and stages: until so many tokens of the job, other weights.

    stages: (tokens, weights) in the order of their ends; None tokens: to the end. stops: whether the run ends with the
    first source that is exhausted.
    """

    manifests: dict[str, Manifest]
    stages: tuple[tuple[int | None, Weights], ...]
    stops: bool = False

    @classmethod
    def of(
        cls,
        sources: Mapping[str, tuple[Shards, float]],
        stages: Sequence[tuple[int | None, Mapping[str, float]]] = (),
        stopping_strategy: str = "never",
    ) -> "Sources":
        """Sets and their weights by name. Raises SettingError or SetError for what cannot be mixed."""
        if stopping_strategy not in STOPPING_STRATEGIES:
            raise SettingError(f"stopping_strategy: {stopping_strategy!r}, needed: {' or '.join(STOPPING_STRATEGIES)}")
        for name in sources:
            if not _NAME.fullmatch(name):
                raise SettingError(f"sources: {name!r}, needed: a name of letters, digits, - and _")
        weights = {name: float(weight) for name, (_, weight) in sources.items()}
        manifests = {name: select_shards(shards) for name, (shards, _) in sorted(sources.items())}
        _check_alike(manifests)
        found = tuple((until, dict(chosen)) for until, chosen in stages) or ((None, weights),)
        for number, (until, chosen) in enumerate(found):
            _check_stage(number, until, chosen, manifests)
        if [until for until, _ in found[:-1]] != sorted({until or 0 for until, _ in found[:-1]}):
            raise SettingError(
                "stages: needed: ends that grow from stage to stage, and none but that of the last left out"
            )
        return cls(manifests, found, stopping_strategy == "first_exhausted")

    def weights_from(self, samples_per_step: int, seq_length: int) -> list[WeightsFrom]:
        """The stages by the samples that they begin with: each ends with the step in which its tokens are reached."""
        found, start = [], 0
        for until, weights in self.stages:
            found.append(WeightsFrom(start, weights))
            start = -(-(until or 0) // (samples_per_step * seq_length)) * samples_per_step
        return found


def going_on(past: Sequence[WeightsFrom], position: int, wanted: Sequence[WeightsFrom]) -> list[WeightsFrom]:
    """The weights of a job that goes on at a position: those that held before it, and from there on those that are wanted."""
    if position == 0:
        return list(wanted)
    held = [each for each in past if each.start < position]
    now = [each for each in wanted if each.start <= position][-1]
    if not held[-1].is_like(now):
        held.append(WeightsFrom(position, now.weights))
    return [*held, *(each for each in wanted if each.start > position)]


def mixed_order(
    sources: Sources, stages: Sequence[WeightsFrom], *, seed: int, readers: int, streams: int | None
) -> MixedOrder:
    """The order of a mixture for so many ranks × workers. stages: the weights that held and will hold.

    Raises SettingError for what cannot be dealt to them.
    """
    names = tuple(sorted({*sources.manifests, *(name for stage in stages for name in stage.weights)}))
    rows = {name: manifest.num_sequences for name, manifest in sources.manifests.items()}
    streams = streams or default_streams(min(int(sizes.sum()) for sizes in rows.values()), readers)
    orders = {
        name: reading_order.build(sizes, seed=seed, readers=readers, streams=streams, kind="repeat")
        for name, sizes in rows.items()
    }
    weights = (Stage(each.start, tuple(each.weights.get(name, 0.0) for name in names)) for each in stages)
    mixture = Mixture(tuple(weights), streams, seed)
    return MixedOrder(names, tuple(orders.get(name) for name in names), mixture, sources.stops)


def read_history(stages: Any) -> list[WeightsFrom]:
    """The stages of a state. Raises SetError when they are damaged."""
    try:
        return [WeightsFrom(int(each["start"]), {k: float(v) for k, v in each["weights"].items()}) for each in stages]
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise SetError(f"cannot go on: stages of the state are {stages!r} ({error}); it is damaged") from None


def parse_sources(words: Sequence[str]) -> dict[str, tuple[str, float]]:
    """What --shards names more than one set by: PLACE=WEIGHT, or NAME=PLACE=WEIGHT; a weight that is left out is 1.

    The name of a source is, where none is given, the last part of its place. Raises SettingError for two of one name.
    """
    found: dict[str, tuple[str, float]] = {}
    for word in words:
        rest, weight = _weight(word)
        name, equals, place = rest.partition("=")
        if not equals or not _NAME.fullmatch(name):
            name, place = PurePath(rest).name, rest
        if name in found:
            raise SettingError(f"shards: two sources are named {name!r}; name them: NAME=PLACE=WEIGHT")
        found[name] = place, weight
    return found


def read_sources(text: str) -> dict[str, tuple[str, float]]:
    """The sources of a recipe, as JSON: {name: {"shards": place, "weight": 0.7}}. Raises SettingError."""
    found = {}
    for name, values in _mapping("sources", text).items():
        if not isinstance(values, dict) or set(values) - {"shards", "weight"} or "shards" not in values:
            raise SettingError(f"sources: {name}: {values!r}, needed: shards, and a weight (default: 1)")
        found[name] = str(values["shards"]), _number(f"sources: {name}: weight", values.get("weight", 1))
    return found


def read_stages(text: str) -> list[tuple[int | None, Weights]]:
    """The stages of a recipe, as JSON: {name: {"until": "1e9 tokens", "weights": {…}}}; the last has no end. Raises SettingError."""
    found: list[tuple[int | None, Weights]] = []
    for name, values in _mapping("stages", text).items():
        if (
            not isinstance(values, dict)
            or set(values) - {"until", "weights"}
            or not isinstance(values.get("weights"), dict)
        ):
            raise SettingError(f"stages: {name}: {values!r}, needed: weights, and until (but for the last one)")
        weights = {each: _number(f"stages: {name}: {each}", weight) for each, weight in values["weights"].items()}
        until = str(values["until"]).removesuffix("tokens").replace("_", "") if "until" in values else None
        found.append((None if until is None else int(_number(f"stages: {name}: until", until)), weights))
    return found


def _mapping(key: str, text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise SettingError(f"{key}: not JSON ({error}): {text:.80}") from None
    if not isinstance(values, dict) or not values:
        raise SettingError(f"{key}: {text:.80}, needed: a mapping of names")
    return values


def _number(what: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SettingError(f"{what}: {value!r}, needed: a number") from None


def _weight(word: str) -> tuple[str, float]:
    rest, equals, last = word.rpartition("=")
    try:
        return (rest, float(last)) if equals else (word, 1.0)
    except ValueError:
        return word, 1.0


def _shares(weights: Weights) -> dict[str, int]:
    used = {name: weight for name, weight in sorted(weights.items()) if weight}
    return dict(zip(used, whole_shares(list(used.values())), strict=True))


def _check_stage(number: int, until: int | None, weights: Weights, known: Iterable[str]) -> None:
    unknown = sorted(set(weights) - set(known))
    if unknown:
        raise SettingError(f"stage {number}: no source {unknown[0]!r}; there are {sorted(known)}")
    if until is not None and until < 1:
        raise SettingError(f"stage {number}: until {until} tokens, needed: at least 1")
    whole_shares(list(weights.values()))


def _check_alike(manifests: Mapping[str, Manifest]) -> None:
    """Raises SetError when two sets cannot be in one batch, naming what differs."""
    first = next(iter(manifests), None)
    if first is None:
        raise SettingError("sources: none, needed: one at least")
    wanted = _traits(manifests[first])
    for name, manifest in manifests.items():
        for (what, value), needed in zip(_traits(manifest).items(), wanted.values(), strict=True):
            if value != needed:
                raise SetError(
                    f"source {name!r} ({manifest.root}): {what} {value}, but {first!r} ({manifests[first].root}) has {needed}; "
                    "write both with the same, or train on one"
                )


def _traits(manifest: Manifest) -> dict[str, Any]:
    tokenizer = manifest.info.tokenizer
    return {
        "seq_length": manifest.info.seq_length,
        "a tokenizer with fingerprint": tokenizer.fingerprint,
        "an EOS with id": tokenizer.eos_token_id,
    }
