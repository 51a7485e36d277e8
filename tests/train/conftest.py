"""Marked sets that no test changes, made once a module."""

import pytest

from tests.helpers.worlds import write_even, write_uneven
from tokentar import Manifest


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """530 sequences in shards that are equal up to one."""
    return write_even(tmp_path_factory.mktemp("even") / "set")


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """613 sequences in shards of very different size."""
    return write_uneven(tmp_path_factory.mktemp("uneven") / "set")
