"""The state of a loader: where a job stands, what it has left out, and whether another one may go on from it."""

import logging
from collections.abc import Sequence

from tokentar.shard_writer.errors import SetError
from tokentar.train.data.reading import Reading, State
from tokentar.train.data.skip_list import SkipList
from tokentar.train.data.sources import Sources, WeightsFrom, going_on, read_history

_MEANING = {
    "order": "the order",
    "seed": "the seed of the order",
    "streams": "the number of streams",
    "fingerprint": "the data (fingerprint of its shards)",
    "tokenizer": "the tokenizer (fingerprint)",
}
_log = logging.getLogger(__name__)


def check_same_order(state: State, wanted: State) -> None:
    """Raises SetError unless a state is of this data in this order. wanted: what `Reading.identity` gives."""
    for key, value in wanted.items():
        if state.get(key) != value:
            raise SetError(
                f"cannot go on: {_MEANING[key]} was {state.get(key)!r} and is {value!r} now; use the same, or start anew"
            )
    for key in ("streams", "epoch", "position", "consumed"):
        if type(state.get(key)) is not int or state[key] < 0:
            raise SetError(f"cannot go on: {key} of the state is {state.get(key)!r}, needed: 0 or more; it is damaged")


def check_position(state: State, samples: int) -> None:
    """Raises SetError unless a state's position is within an epoch of so many samples."""
    if state["position"] > samples:
        raise SetError(
            f"cannot go on: position of the state is {state['position']}, needed: at most the {samples} samples of an epoch; "
            "it is damaged"
        )


def stages_of(sources: Sources, wanted: Sequence[WeightsFrom], state: State) -> tuple[list[WeightsFrom], State]:
    """The stages of a mixture that goes on from a state, and the state as a mixture has it.

    A set that was read alone, in the order "repeat", is a mixture of one. Raises SetError for a state of other data.
    """
    if "sources" not in state:
        alike = [
            name for name, manifest in sources.manifests.items() if manifest.fingerprint == state.get("fingerprint")
        ]
        if state.get("order") != "repeat" or not alike:
            raise SetError(
                f"cannot go on: the state is of one set, in order {state.get('order')!r}, with fingerprint "
                f"{state.get('fingerprint')!r}; a mixture goes on from order 'repeat' of one of its sources"
            )
        held = [WeightsFrom(0, {alike[0]: 1.0})]
    else:
        held = read_history(state["stages"])
        for name, manifest in sources.manifests.items():
            before = state["sources"].get(name, {}).get("fingerprint", manifest.fingerprint)
            if before != manifest.fingerprint:
                raise SetError(
                    f"cannot go on: source {name!r} had fingerprint {before!r} and has {manifest.fingerprint!r} now; give other "
                    "data another name, or use the same"
                )
    return going_on(held, state.get("position", 0), wanted), state | {"order": "mixture"}


def left_out(reading: Reading, skip_list: SkipList) -> State:
    """What a state says of rows that this rank leaves out: nothing where nothing is left out."""
    damaged = damaged_shards(reading)
    found = {"skip_list": skip_list.fingerprint} if len(skip_list) else {}
    return found | ({"damaged_shards": damaged} if damaged else {})


def damaged_shards(reading: Reading) -> list[str]:
    """Shards that this rank has found to be damaged, sorted; of a mixture SOURCE/SHARD."""
    return sorted(
        f"{name}/{pool.manifest.shards[index].shard}".lstrip("/")
        for name, pool in reading.named_pools.items()
        for index in pool.notes.damaged()
    )


def leave_out_again(reading: Reading, skip_list: SkipList, state: State) -> None:
    """Leave out the shards that the job has left out so far, and say so where the list of sequences is another one."""
    before, now = state.get("skip_list"), left_out(reading, skip_list).get("skip_list")
    if before != now:
        _log.warning(
            "skip list: was %s, is %s (%d sequences) from here on", before or "none", now or "none", len(skip_list)
        )
    damaged = set(state.get("damaged_shards", ()))
    for name, pool in reading.named_pools.items():
        for index, entry in enumerate(pool.manifest.shards):
            if pool.skip and f"{name}/{entry.shard}".lstrip("/") in damaged:
                pool.notes.note_damage(index)
