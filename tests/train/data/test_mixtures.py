"""Several sets mixed by weights: every layout reads the same samples, and a source repeats nothing before its epoch ends.

The sets are marked: sequence i of a set holds i in every position. `by_hand` deals the rows of each set to the streams as
its own order has them, and takes the next one of the source whose turn it is.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.marked import write_marked
from tests.helpers.worlds import canonical, played
from tokentar import Manifest, ShardLoader
from tokentar.shard_writer.errors import SetError, SettingError

STREAMS, BATCH = 12, 24
Sets = dict[str, Manifest]
Settings = dict[str, Any]
SETTINGS: Settings = {"streams": STREAMS, "seed": 4, "global_batch_size": BATCH}


@pytest.fixture
def sets(tmp_path: Path) -> Sets:
    """A set of many shards, one of few, and one of a single shard."""
    return {
        "code": write_marked(tmp_path / "code", 6, [31, 30, 30, 30, 30, 30]),
        "one": write_marked(tmp_path / "one", 1, 50),
        "web": write_marked(tmp_path / "web", 24, 20),
    }


def mixed(sets: Sets, weights: dict[str, float]) -> dict[str, Any]:
    return {name: (sets[name], weight) for name, weight in weights.items()}


def job(sets: Sets, weights: dict[str, float], layout: tuple[int, int, int], **settings: Any) -> list[ShardLoader]:
    """The loaders of all ranks of a layout: ranks, workers, batch size."""
    ranks, workers, size = layout
    sources = mixed(sets, weights)
    return [
        ShardLoader(sources, batch_size=size, rank=rank, world_size=ranks, num_workers=workers, **SETTINGS | settings)
        for rank in range(ranks)
    ]


def keys(loaders: list[ShardLoader], samples: int) -> list[str]:
    """The keys of the next samples of the job, in their order; loaders with workers are played and stay where they are."""
    ranks, size = len(loaders), loaders[0].batch_size
    batches = samples // (ranks * size)
    read = [list(chain(*batched_keys(loader, batches))) for loader in loaders]
    return list(chain(*zip(*read, strict=True)))


def batched_keys(loader: ShardLoader, batches: int) -> list[list[str]]:
    if loader.world.num_workers:
        return [loader.reading.keys(numbers) for numbers, _ in islice(played(loader), batches)]
    return [loader.sample_keys for _ in islice(loader, batches)]


def by_hand(loader: ShardLoader, sets: Sets, samples: int) -> list[str]:
    """The keys of the first samples, one after the other."""
    orders = dict(zip(loader.reading.names, loader.order.orders, strict=True))  # type: ignore[union-attr]
    streams = {}
    for name, order in orders.items():
        rows = [canonical(sets[name], order, epoch) for epoch in range(12)]
        streams[name] = [list(chain(*(epoch[stream::STREAMS] for epoch in rows))) for stream in range(STREAMS)]
    turns = [loader.order.mixture.sources_from(stream, 0) for stream in range(STREAMS)]  # type: ignore[union-attr]
    taken: Counter[tuple[str, int]] = Counter()
    found = []
    for sample in range(samples):
        stream = sample % STREAMS
        name = loader.reading.names[next(turns[stream])]  # type: ignore[union-attr]
        found.append(f"{name}/{streams[name][stream][taken[name, stream]]:012d}")
        taken[name, stream] += 1
    return found


WEIGHTS = {"code": 0.3, "one": 0.1, "web": 0.6}


@pytest.mark.parametrize("layout", [(1, 0, 24), (2, 0, 4), (3, 0, 8), (4, 0, 6), (1, 3, 8), (2, 2, 12), (4, 3, 3)])
def test_every_layout_reads_the_samples_of_the_mixture(sets: Sets, layout: tuple[int, int, int]) -> None:
    loaders = job(sets, WEIGHTS, layout)
    assert keys(loaders, 960) == by_hand(loaders[0], sets, 960)


def test_ids_are_those_of_the_sequences(sets: Sets) -> None:
    (loader,) = job(sets, WEIGHTS, (1, 0, 24))
    for batch in islice(loader, 20):
        assert batch["input_ids"].tolist() == [[int(key.split("/")[1])] * 8 for key in loader.sample_keys]


def test_a_source_repeats_nothing_before_its_epoch_ends(sets: Sets) -> None:
    (loader,) = job(sets, WEIGHTS, (1, 0, 24))
    read = Counter(keys([loader], 4800))
    for name, state in loader.state_dict()["sources"].items():
        times = [count for key, count in read.items() if key.startswith(f"{name}/")]
        assert sum(times) == state["sequences"]
        assert max(times) <= state["epoch"] + 2
        assert state["epoch"] >= (2 if name == "web" else 3)


@pytest.mark.parametrize("seed", range(8))
def test_a_job_goes_on_anywhere_in_another_layout(sets: Sets, seed: int) -> None:
    draw = random.Random(seed)
    layouts = [(1, 0, 24), (2, 0, 4), (3, 0, 8), (4, 0, 6), (2, 3, 6)]
    first, second = (1, 0, 24), draw.choice(layouts)
    whole = keys(job(sets, WEIGHTS, first), 2400)
    steps = draw.randint(0, 60)
    (before,) = job(sets, WEIGHTS, first)
    assert keys([before], steps * BATCH) == whole[: steps * BATCH]
    state = json.loads(json.dumps(before.state_dict()))
    after = job(sets, WEIGHTS, second)
    for loader in after:
        loader.load_state_dict(state)
    assert keys(after, 20 * BATCH) == whole[steps * BATCH : (steps + 20) * BATCH]


@pytest.mark.parametrize("steps", [1, 7, 23])
def test_other_weights_at_a_checkpoint_are_those_of_a_stage_without_a_restart(sets: Sets, steps: int) -> None:
    """Tokens of a step: 24 sequences of 8."""
    later = {"code": 0.8, "web": 0.2}
    stages = [(steps * BATCH * 8, WEIGHTS), (None, later)]
    whole = keys(job(sets, WEIGHTS, (1, 0, 24), stages=stages), 2400)
    (before,) = job(sets, WEIGHTS, (1, 0, 24))
    assert keys([before], steps * BATCH) == whole[: steps * BATCH]
    (after,) = job(sets, later, (1, 0, 24))
    after.load_state_dict(before.state_dict())
    assert keys([after], 2400 - steps * BATCH) == whole[steps * BATCH :]
    again = job(sets, later, (2, 0, 4))
    for loader in again:
        loader.load_state_dict(after.state_dict())
    assert again[0].state_dict() == after.state_dict()


def test_sources_come_and_go_at_checkpoints_and_go_on_where_they_were(sets: Sets) -> None:
    (first,) = job(sets, {"web": 1, "code": 1}, (1, 0, 24))
    read = keys([first], 240)
    (second,) = job({"web": sets["web"], "one": sets["one"]}, {"web": 1, "one": 1}, (1, 0, 24))
    second.load_state_dict(first.state_dict())
    read += keys([second], 48)
    assert not [key for key in read[240:] if key.startswith("code/")]
    (third,) = job(sets, {"web": 1, "code": 1}, (1, 0, 24))
    third.load_state_dict(second.state_dict())
    read += keys([third], 96)
    for name in ("web", "code"):
        of_source = [key for key in read if key.startswith(f"{name}/")]
        assert len(set(of_source)) == len(of_source), "less than an epoch"


def test_a_set_that_was_read_alone_goes_on_as_a_mixture(sets: Sets) -> None:
    alone = ShardLoader(sets["web"], batch_size=24, order="repeat", **SETTINGS)
    read = [f"web/{key}" for key in chain(*(alone.sample_keys for _ in islice(alone, 10)))]
    (loader,) = job(sets, {"web": 0.5, "code": 0.5}, (1, 0, 24))
    loader.load_state_dict(alone.state_dict())
    read += keys([loader], 240)
    of_web = [key for key in read if key.startswith("web/")]
    assert len(set(of_web)) == len(of_web) > 300


def test_a_mixture_of_one_is_the_set_alone(sets: Sets) -> None:
    alone = ShardLoader(sets["web"], batch_size=24, order="repeat", **SETTINGS)
    (loader,) = job(sets, {"web": 3}, (1, 0, 24))
    expected = list(chain(*(alone.sample_keys for _ in islice(alone, 60))))
    assert keys([loader], 60 * BATCH) == [f"web/{key}" for key in expected]


def test_a_source_of_weight_0_is_not_read(sets: Sets) -> None:
    (loader,) = job(sets, {"web": 1, "code": 0}, (1, 0, 24))
    assert {key.split("/")[0] for key in keys([loader], 960)} == {"web"}


def test_a_run_ends_before_the_first_source_would_repeat(sets: Sets) -> None:
    loaders = job(sets, WEIGHTS, (2, 0, 4), stopping_strategy="first_exhausted")
    assert not loaders[0].endless
    read = list(chain(*(chain(*(loader.sample_keys for _ in loader)) for loader in loaders)))
    assert len(read) == len(loaders[0]) * 8 == loaders[0].plan.steps * BATCH > 0
    assert len(set(read)) == len(read), "nothing twice"
    endless = job(sets, WEIGHTS, (1, 0, 24))
    assert sorted(read) == sorted(keys(endless, len(read)))
    assert loaders[0].order.samples < len(read) + BATCH


@pytest.mark.parametrize("workers", [0, 2])
def test_real_workers_read_what_none_do(sets: Sets, workers: int) -> None:
    loader = ShardLoader(mixed(sets, WEIGHTS), batch_size=8, num_workers=workers, **SETTINGS)
    read = list(chain(*(loader.sample_keys for _ in islice(loader, 30))))
    assert read == keys(job(sets, WEIGHTS, (1, 0, 24)), 240)


def change(manifest: Manifest, **values: Any) -> Manifest:
    """The manifest of a set that was written in another way."""
    info = manifest.info
    tokenizer = replace(info.tokenizer, **{k: v for k, v in values.items() if hasattr(info.tokenizer, k)})
    rest = {k: v for k, v in values.items() if not hasattr(info.tokenizer, k)}
    return replace(manifest, info=replace(info, tokenizer=tokenizer, **rest))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seq_length": 16}, r"source 'web' .*: seq_length 16, but 'code' .* has 8"),
        ({"fingerprint": "f" * 32}, r"source 'web' .*: a tokenizer with fingerprint f+, but 'code' .* has 0+"),
        ({"eos_token_id": 3}, r"source 'web' .*: an EOS with id 3, but 'code' .* has 0"),
    ],
)
def test_sets_that_do_not_fit_each_other_are_refused_by_what_differs(
    sets: Sets, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(SetError, match=message):
        ShardLoader({"code": (sets["code"], 1), "web": (change(sets["web"], **values), 1)}, batch_size=4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: ShardLoader({}, batch_size=4), "sources: none"),
        (lambda s: ShardLoader({"a b": (s["web"], 1)}, batch_size=4), "sources: 'a b', needed: a name"),
        (lambda s: ShardLoader({"web": (s["web"], 0)}, batch_size=4), "weights: .*, needed: one above 0"),
        (lambda s: ShardLoader({"web": (s["web"], -1)}, batch_size=4), r"weight: -1\.0, needed: 0 or more"),
        (lambda s: job(s, {"web": 1}, (1, 0, 4), stages=[(None, {"wob": 1})]), "stage 0: no source 'wob'"),
        (
            lambda s: job(s, {"web": 1}, (1, 0, 4), stages=[(9, {"web": 1}), (5, {"web": 1})] * 2),
            "needed: ends that grow",
        ),
        (lambda s: job(s, {"web": 1}, (1, 0, 4), stages=[(0, {"web": 1})]), "until 0 tokens, needed: at least 1"),
        (
            lambda s: job(s, {"web": 1}, (1, 0, 4), stopping_strategy="last"),
            "stopping_strategy: 'last', needed: never or",
        ),
        (lambda s: ShardLoader(s["web"], batch_size=4, stages=[(None, {})]), "stages, stopping_strategy: of a mixture"),
        (lambda s: ShardLoader({"one": (s["one"], 1)}, batch_size=4, streams=60), "50 sequences for 60 streams"),
    ],
)
def test_what_cannot_be_mixed_is_refused(sets: Sets, make: Callable[[Sets], Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make(sets)


def test_a_state_of_other_data_or_order_is_refused(sets: Sets, tmp_path: Path) -> None:
    (loader,) = job(sets, WEIGHTS, (1, 0, 24))
    keys([loader], 48)
    state = loader.state_dict()
    other = sets | {"web": write_marked(tmp_path / "other", 24, 21)}
    with pytest.raises(SetError, match="source 'web' had fingerprint"):
        job(other, WEIGHTS, (1, 0, 24))[0].load_state_dict(state)
    with pytest.raises(SetError, match="the data"):
        ShardLoader(sets["web"], batch_size=24, order="repeat", **SETTINGS).load_state_dict(state)
    alone = ShardLoader(sets["web"], batch_size=24, **SETTINGS)
    with pytest.raises(SetError, match="a mixture goes on from order 'repeat'"):
        loader.load_state_dict(alone.state_dict())
    with pytest.raises(SetError, match=r"stages of the state are .*; it is damaged"):
        loader.load_state_dict(state | {"stages": [{"start": 0}]})
