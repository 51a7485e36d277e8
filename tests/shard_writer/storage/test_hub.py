"""What the Hub's file system says of a file, in our terms."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from tokentar.shard_writer.storage.client import Stat
from tokentar.shard_writer.storage.hub import Hub


class FewFiles:
    """HfFileSystem with one file; only `expand_info` brings its last commit."""

    commit = SimpleNamespace(date=datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC))

    def info(self, path: str, expand_info: bool = False) -> dict[str, Any]:
        """As HfFileSystem.info."""
        assert path == "datasets/user/name/set/dataset.json"
        return {"size": 7, "blob_id": "b", "last_commit": self.commit if expand_info else None}

    def find(self, path: str, detail: bool) -> dict[str, Any]:
        """As HfFileSystem.find."""
        assert (path, detail) == ("datasets/user/name/set", True)
        return {f"{path}/dataset.json": self.info(f"{path}/dataset.json")}


def test_a_file_is_told_with_the_time_of_its_commit_and_a_listing_without() -> None:
    hub = Hub("hf://datasets/user/name")
    hub.__dict__["_files"] = FewFiles()
    seconds = int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp())
    assert hub.stat("set/dataset.json") == Stat(7, "b", seconds * 10**9)
    assert list(hub.list("set/")) == [("set/dataset.json", Stat(7, "b", None))]
