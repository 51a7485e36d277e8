"""What --shards may name, and what is said of names that are wrong."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tokentar import Manifest, ShardLoader
from tokentar.shard_writer.errors import SetError, SettingError, TokentarError
from tokentar.train.data.shard_patterns import select_shards

Marked = Callable[..., Manifest]
ALL = ["train-000000", "train-000001", "train-000002", "train-000003"]


@pytest.fixture
def folder(marked: Marked) -> Path:
    """Four shards of four sequences."""
    return marked(4, 4).root


def names(manifest: Manifest) -> list[str]:
    return [entry.shard for entry in manifest.shards]


@pytest.mark.parametrize("pattern", ["", "train-*.tar", "train-{000000..000003}.tar", "train-00000?.tar", "*.tar"])
def test_a_folder_a_glob_and_braces_name_the_whole_set(folder: Path, pattern: str) -> None:
    assert names(select_shards(folder / pattern)) == ALL
    assert names(select_shards(str(folder / pattern))) == ALL


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        ("train-{0..3}.tar", SetError, r"train-0.tar, train-1.tar, train-2.tar, train-3.tar \(4 of 4\) not there"),
        ("train-{000000..000004}.tar", SetError, r": train-000004.tar \(1 of 5\) not there; the set has train-000000"),
        ("train-{000000...000003}.tar", SettingError, "is not a range of shards .two dots between two numbers"),
        ("train-{000000-000003}.tar", SettingError, "is not a range of shards"),
        ("train-{000000..000003.tar", SettingError, "unbalanced braces; write train-000000.tar … train-000003.tar"),
        ("train-000009.tar", SetError, "train-000009.tar .1 of 1. not there"),
        ("valid-*.tar", SetError, "'valid-.*' matches none of train-000000.tar … train-000003.tar"),
    ],
)
def test_names_that_are_not_there_and_patterns_that_are_none_are_told(
    folder: Path, pattern: str, error: type[TokentarError], message: str
) -> None:
    with pytest.raises(error, match=message):
        select_shards(folder / pattern)


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(SettingError, match="shards: empty"):
        select_shards("")


def test_a_part_of_the_set_is_read_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tokentar"):
        manifest = select_shards(folder / "train-{000000..000002}.tar")
    assert names(manifest) == ALL[:3]
    assert "names 3 shards, the manifest has 4" in caplog.text


def test_a_chosen_shard_keeps_its_sequence_numbers(folder: Path) -> None:
    loader = ShardLoader(folder / "train-000002.tar", batch_size=4)
    numbers = [number for _ in loader for number in loader.sample_numbers.tolist()]
    assert sorted(numbers) == [8, 9, 10, 11]


def test_a_whole_set_is_read_without_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        select_shards(folder)
        select_shards(folder / "train-*.tar")
    assert caplog.text == ""


def test_a_shard_that_was_lost_is_named(folder: Path) -> None:
    (folder / "train-000001.tar").unlink()
    with pytest.raises(SetError, match=r"train-000001.tar \(1 of 4\) not there"):
        select_shards(folder / "train-*.tar")
    with pytest.raises(SetError, match=r"train-000001.tar: cannot be read: No such file"):
        list(ShardLoader(folder, batch_size=4))


@pytest.mark.parametrize("pattern", ["", "train-*.tar"])
def test_an_unfinished_set_is_refused(folder: Path, pattern: str) -> None:
    (folder / "dataset.json").unlink()
    with pytest.raises(SetError, match=r"no dataset\.json, so there is no finished set here"):
        select_shards(folder / pattern)


@pytest.mark.parametrize("place", ["nowhere", "nowhere/train-{000000..000003}.tar"])
def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(SetError, match=r"nowhere: no dataset\.json"):
        select_shards(tmp_path / place)


def test_a_set_without_the_split_preferred_gives_its_first(folder: Path) -> None:
    assert {entry.split for entry in select_shards(folder, prefer="validation").shards} == {"train"}


def test_an_unknown_split_is_refused(folder: Path) -> None:
    with pytest.raises(SetError, match=r"no split 'validation'; there are \['train'\]"):
        select_shards(folder).split("validation")


@pytest.mark.parametrize(("shards", "rows"), [(0, 0), (2, 0)])
def test_an_empty_set_is_an_error_and_not_an_endless_wait(marked: Marked, shards: int, rows: int) -> None:
    with pytest.raises(TokentarError, match=r"0 sequences|no shard"):
        ShardLoader(marked(shards, rows).root, batch_size=1)
