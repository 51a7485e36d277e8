"""What users have keeps working: bytes of sets, orders of reading and positions are those of version 0.1.0."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.digests import digests
from tokentar import ShardLoader, open_shards
from tokentar.shard_writer.maintenance.verify import faults
from tokentar.train.trainer import checkpoint

HOME = Path(__file__).parent / "compatibility"
OLD = HOME / "version-0.1.0"
WANTED: dict[str, Any] = json.loads((HOME / "digests.json").read_text())


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return digests()


@pytest.mark.parametrize("kind", WANTED["sets"])
def test_a_set_has_the_bytes_that_0_1_0_wrote(seen: dict[str, Any], kind: str) -> None:
    assert seen["sets"][kind] == WANTED["sets"][kind]


@pytest.mark.parametrize("kind", WANTED["reads"])
def test_batches_come_in_the_order_of_0_1_0(seen: dict[str, Any], kind: str) -> None:
    assert seen["reads"][kind] == WANTED["reads"][kind]


def test_a_checkpoint_holds_the_position_that_0_1_0_saved(seen: dict[str, Any]) -> None:
    assert WANTED["checkpoint"].items() <= seen["checkpoint"].items()


def test_a_set_of_0_1_0_is_read_and_whole() -> None:
    manifest = open_shards(OLD / "set")
    assert list(faults(manifest)) == []
    assert manifest.info.totals.sequences == sum(len(manifest.open(i).rows) for i in range(3)) > 60


def test_a_checkpoint_of_0_1_0_goes_on_at_the_sequence_that_came_next() -> None:
    loader = ShardLoader(OLD / "set", batch_size=4)
    loader.load_state_dict(checkpoint.read_position(OLD / "checkpoint-3"))
    keys = [loader.sample_keys for _ in islice(loader, 3)]
    assert keys == json.loads((OLD / "next_batches.json").read_text())
