"""One object store for all tests of this folder; a proxy and an empty place for each of them."""

import uuid
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.object_store.proxy import FaultProxy
from tests.object_store.server import BUCKET, HASTY, Server
from tokentar.shard_writer.storage import places
from tokentar.shard_writer.storage.urls import Url


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A store that is started once, with one bucket."""
    with Server(tmp_path_factory.mktemp("objstore")) as running:
        running.make_bucket(BUCKET)
        yield running


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    """A proxy before the store."""
    with FaultProxy(server.address) as standing:
        yield standing


@pytest.fixture
def there(server: Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The URL of an empty folder, which clients of this process and its children reach through the proxy."""
    forkserver._forkserver._stop()  # the one of an earlier test would give its workers the environment of that test
    for name, value in server.environment(proxy.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def url(there: str) -> Url:
    """A place for a set, with a client that soon gives up."""
    place = places.place(f"{there}/set", HASTY)
    assert isinstance(place, Url)
    return place
