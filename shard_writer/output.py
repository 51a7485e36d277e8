"""The output folder: what is there before, the spool that a rerun goes on with, and publishing (G3).

Until `publish`, everything is in the spool, so whatever goes wrong leaves a finished set of earlier as it was.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from shard_writer import storage
from shard_writer.errors import SetError
from shard_writer.manifest import DATASET_FILE, MANIFEST_FILE, Manifest, write_manifest
from shard_writer.spool import FOLDER

_PLAN_FILE, _PUBLISHING_FILE = "plan.json", "publishing"
_SET_FILE = re.compile(r"[\w-]+-\d{6,}(\.tar|\.docs\.parquet)")


@dataclass(frozen=True)
class Output:
    """A folder that a set is written to. `plan` is all that decides the bytes; None when the input has no name to know it by."""

    folder: Path
    plan: str | None
    overwrite: bool

    @property
    def spool(self) -> Path:
        """The hidden folder of unfinished work."""
        return self.folder / FOLDER

    @property
    def shards(self) -> Path:
        """Where whole shards wait for the others."""
        return self.spool / "shards"

    def present(self) -> list[str]:
        """Files of a set, finished or not, sorted."""
        names = os.listdir(self.folder) if self.folder.exists() else []
        return sorted(n for n in names if n in (DATASET_FILE, MANIFEST_FILE) or _SET_FILE.fullmatch(n))

    def prepare(self) -> None:
        """Go on with the spool of the same plan, or start afresh. Raises SetError when something else is there."""
        same = self._is_same_plan()
        present = self.present()
        if present and not self.overwrite and not (same and self._is_publishing()):
            if not (self.spool / _PLAN_FILE).exists():
                storage.remove(self.spool)  # there for our lock alone
            raise SetError(
                f"{self.folder}: already holds {', '.join(present[:6])}{', …' if len(present) > 6 else ''} ({len(present)} files); "
                "choose another output, or replace them with --overwrite"
            )
        if not same:
            self._start_afresh()
        self.shards.mkdir(exist_ok=True)

    def _is_same_plan(self) -> bool:
        path = self.spool / _PLAN_FILE
        return self.plan is not None and path.exists() and path.read_text() == self.plan

    def _is_publishing(self) -> bool:
        return (self.spool / _PUBLISHING_FILE).exists()

    def _start_afresh(self) -> None:
        path = self.spool / _PLAN_FILE
        if path.exists() and path.stat().st_size and not self.overwrite:
            raise SetError(
                f"{self.spool}: unfinished work of another run (other input, settings or tokenizer); finish that run, choose another "
                "output, or drop the work with --overwrite"
            )
        for old in self.spool.iterdir():
            if old.name != storage.LOCK_FILE:
                storage.remove(old)
        storage.put(path, (self.plan or "").encode())

    def publish(self, manifest: Manifest) -> None:
        """Replace what is there by the finished set: shards, manifest, dataset.json last. May be killed and repeated at any point."""
        if not self._is_publishing():
            for name in [DATASET_FILE, *self.present()]:
                storage.remove(self.folder / name)
            storage.put(self.spool / _PUBLISHING_FILE, b"")
        for entry in manifest.shards:
            if (self.shards / entry.file_name).exists():
                os.replace(self.shards / entry.file_name, manifest.path(entry))
        storage.sync_folder(self.folder)
        write_manifest(manifest)
        storage.remove(self.spool)

    def discard(self) -> None:
        """Leave nothing of a run that cannot go on, and no folder that was not there before."""
        storage.remove(self.spool)
        if not os.listdir(self.folder):
            self.folder.rmdir()
