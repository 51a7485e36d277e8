"""Who am I: from arguments or from torchrun's variables, and never from strays."""

import os
from itertools import chain
from pathlib import Path

import pytest
import torch.distributed as dist
import webdataset as wds
from torch.testing._internal.distributed.fake_pg import FakeStore

import train
from tokentar.shard_writer.errors import SettingError
from tokentar.train.distributed.world import World, is_main_process


def test_a_lone_process_is_the_whole_job() -> None:
    assert World.detect() == World(0, 1, 0, 0)
    assert World.detect(num_workers=3).readers == 3
    assert World.detect().readers == 1
    assert is_main_process()


def test_rank_and_world_size_come_from_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert World.detect(num_workers=2) == World(2, 4, 0, 2)
    assert World.detect(num_workers=2).readers == 8
    assert not is_main_process()


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "2"}, {"RANK": "1"}, {"RANK": "", "WORLD_SIZE": "2"}])
def test_half_of_the_variables_is_refused_as_all_would_read_as_rank_0(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        SettingError, match=r"environment: .*needed: two numbers or neither; start with torchrun, or give"
    ):
        World.detect()


def test_a_process_group_is_asked_whoever_started_it() -> None:
    dist.init_process_group("fake", rank=2, world_size=4, store=FakeStore())
    try:
        assert World.detect() == World(2, 4)
        assert World.detect(0, 1) == World(0, 1)
    finally:
        dist.destroy_process_group()
    assert World.detect() == World(0, 1)


def test_arguments_win_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert World.detect(rank=0, world_size=2) == World(0, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 1}, "rank 1 and world_size None: give both or neither"),
        ({"world_size": 2}, "rank None and world_size 2: give both or neither"),
        ({"rank": 2, "world_size": 2}, r"rank: 2, needed: 0 … 1 \(world_size is 2\)"),
        ({"rank": -1, "world_size": 2}, "rank: -1, needed: 0 … 1"),
        ({"num_workers": -1}, "num_workers: -1, needed: 0 or more"),
    ],
)
def test_a_world_that_cannot_be_is_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        World.detect(**arguments)


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (1, 3), (2, 2), (4, 1)])
def test_splitters_deal_every_unit_to_one_reader(world_size: int, num_workers: int) -> None:
    dealt = [
        list(world.sees(wds.split_by_worker)(world.sees(wds.split_by_node)(iter(range(24)))))
        for rank in range(world_size)
        for worker in range(max(1, num_workers))
        for world in [World(rank, world_size, worker, num_workers)]
    ]
    assert sorted(chain.from_iterable(dealt)) == list(range(24))
    assert {len(units) for units in dealt} == {24 // len(dealt)}


def test_splitters_see_the_world_and_not_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    strays = {"RANK": "3", "WORLD_SIZE": "7", "WORKER": "1", "NUM_WORKERS": "5"}
    for name, value in strays.items():
        monkeypatch.setenv(name, value)
    assert list(World(1, 2).sees(wds.split_by_node)(iter(range(6)))) == [1, 3, 5]
    assert list(World(1, 2).sees(wds.split_by_worker)(iter(range(6)))) == list(range(6))
    assert {name: os.environ[name] for name in strays} == strays


def test_splitters_leave_no_variables_behind() -> None:
    list(World(1, 2, 1, 2).sees(wds.split_by_worker)(iter(range(6))))
    assert not {"RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS"} & set(os.environ)


@pytest.mark.parametrize(("start", "ranks"), [(0, [0, 1, 2]), (1, [1, 2, 0]), (3, [0, 1, 2]), (5, [2, 0, 1])])
def test_a_world_can_be_turned_so_that_rank_0_takes_any_sample(start: int, ranks: list[int]) -> None:
    assert [World(rank, 3).starting_at(start).rank for rank in range(3)] == ranks


def test_outside_a_dataloader_worker_the_world_stays_what_it_is() -> None:
    assert World(1, 2, 1, 2).in_worker() == World(1, 2, 1, 2)


def test_one_module_reads_who_we_are() -> None:
    for path in Path(train.__file__).parent.glob("*.py"):
        text = path.read_text()
        if path.name != "world.py":
            assert not [word for word in ('"RANK"', '"WORLD_SIZE"', "get_worker_info") if word in text], path.name
