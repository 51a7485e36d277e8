"""Memory, open files and processes after many epochs as after 5 (G11), though each epoch is left inside a shard."""

import gc
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.helpers.tokenizers import byte_tokenizer
from tokentar import Manifest, ShardLoader, write_shards

LENGTH, BATCH, STREAMS = 2048, 16, 8
EPOCH_BYTES = 1024 * LENGTH * 8  # what half an epoch hands out
EARLY = 5


class Held(NamedTuple):
    """What this process holds."""

    mapped: int  # shards
    descriptors: int
    children: int  # started since, also those that have ended and are not waited for


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Eight shards of 1.3 MB, 2050 sequences in all."""
    texts = ({"text": "x" * 99_999} for _ in range(42))
    settings: dict[str, Any] = {"seq_length": LENGTH, "workers": 0, "num_shards": 8, "provenance": False}
    folder = tmp_path_factory.mktemp("written") / "set"
    return write_shards(input=texts, tokenizer=byte_tokenizer(), output=folder, **settings)


def children() -> set[int]:
    """Processes below this one."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def held(manifest: Manifest, others: set[int]) -> tuple[Held, int]:
    """What is held, and RSS in bytes. others: children that earlier tests have left."""
    gc.collect()
    here = psutil.Process()
    mapped = {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(manifest.root) in line
    }
    return Held(len(mapped), here.num_fds(), len(children() - others)), here.memory_info().rss


@pytest.mark.parametrize(("workers", "epochs"), [(0, 50), (2, 20)])
def test_memory_and_open_files_after_many_epochs_are_as_after_5(manifest: Manifest, workers: int, epochs: int) -> None:
    loader = ShardLoader(manifest, batch_size=BATCH, streams=STREAMS, num_workers=workers)
    within, behind, others = {}, {}, children()
    for epoch in range(1, epochs + 1):
        loader.set_epoch(epoch)
        batches = iter(loader)
        assert len(list(islice(batches, 64))) == 64, "of 128"
        if epoch in (EARLY, epochs):
            within[epoch] = held(manifest, others)
        del batches
        if epoch in (EARLY, epochs):
            behind[epoch] = held(manifest, others)
    expected = Held(0 if workers else STREAMS, within[EARLY][0].descriptors, workers)
    assert within[EARLY][0] == within[epochs][0] == expected
    assert behind[EARLY][0] == behind[epochs][0]
    assert (behind[epochs][0].mapped, behind[epochs][0].children) == (0, 0)
    for early, late in ((within[EARLY], within[epochs]), (behind[EARLY], behind[epochs])):
        assert late[1] - early[1] < EPOCH_BYTES, "less than if one epoch in so many kept its rows"
