"""The output folder: what is there before, the spool that a rerun goes on with, and publishing (G3).

Until `publish`, everything is in the spool, so whatever goes wrong leaves a finished set of earlier as it was. One file
of the spool, plan.json, says whose work it holds and, once all of it is done, what is to be published; a run that is
killed while it publishes is finished from that alone. plan.json goes last.
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokentar.shard_writer.errors import SetError
from tokentar.shard_writer.format.dataset_info import DATASET_FILE
from tokentar.shard_writer.format.manifest import MANIFEST_FILE, Manifest, manifest_text, open_shards, put_manifest
from tokentar.shard_writer.storage import files
from tokentar.shard_writer.storage.urls import Url
from tokentar.shard_writer.writing.spool import FOLDER

_PLAN_FILE = "plan.json"
_REPLACE = "choose another output, or replace them with --overwrite"
_SET_FILE = re.compile(r"[\w-]+-\d{6,}(\.tar|\.docs\.parquet)")


@dataclass(frozen=True)
class Output:
    """A folder that a set is written to. `plan` is all that decides the bytes; None when the input has no name to know it by."""

    folder: Path
    plan: str | None
    overwrite: bool = False
    append: bool = False

    @property
    def spool(self) -> Path:
        """The hidden folder of unfinished work."""
        return self.folder / FOLDER

    @property
    def plan_file(self) -> Path:
        """What says whose work the spool holds."""
        return self.spool / _PLAN_FILE

    @property
    def shards(self) -> Path:
        """Where whole shards wait for the others."""
        return self.spool / "shards"

    def present(self) -> list[str]:
        """Files of a set, finished or not, sorted, provenance last."""
        return set_files(os.listdir(self.folder) if self.folder.exists() else [])

    def strays(self, manifest: Manifest) -> list[str]:
        """Files of a set that `manifest` does not list, sorted."""
        return unlisted(self.present(), manifest)

    def prepare(self) -> Manifest | None:
        """Go on with the spool of the same plan, or start afresh; returns the set to append to, if that is asked for.

        Raises SetError when something else is there.
        """
        try:
            return self._prepare()
        except SetError:
            if not self._state():
                self.discard()  # there for our lock alone
            raise

    def _prepare(self) -> Manifest | None:
        base = open_shards(self.folder) if self.append else None
        if self.is_publishing:
            return base
        state = {"plan": self.plan, "onto": base.fingerprint if base else None}
        is_same = self.plan is not None and self._state() == state
        if not is_same and self._state().get("plan") is not None and not self.overwrite:
            raise unfinished(self.spool)
        if base:
            self._withdraw(base)
        if present := self.strays(base) if base else [] if self.overwrite else self.present():
            raise occupied(
                self.folder, present, "files", "remove what its manifest does not list" if self.append else _REPLACE
            )
        if not is_same:
            self._empty_spool()
            files.put(self.plan_file, json.dumps(state).encode())
        self.shards.mkdir(exist_ok=True)
        return base

    def _state(self) -> dict[str, Any]:
        """What plan.json says; empty when there is none."""
        return read_state(self.plan_file)

    @property
    def is_unfinished(self) -> bool:
        """Whether there is work in the spool to go on with."""
        return bool(self._state())

    @property
    def is_publishing(self) -> bool:
        """Whether a run of this plan was stopped when only `finish` was left to do."""
        state = self._state()
        return self.plan is not None and state.get("plan") == self.plan and "manifest" in state

    def _withdraw(self, base: Manifest) -> None:
        """Take back shards that another append had put in place when it was stopped."""
        for name in self._state().get("files", []):
            if name in self.strays(base):
                files.remove(self.folder / name)

    def _empty_spool(self) -> None:
        """Remove all but our lock, plan.json last."""
        names = set(os.listdir(self.spool)) - {files.LOCK_FILE, _PLAN_FILE}
        for name in [*names, _PLAN_FILE]:
            files.remove(self.spool / name)

    def publish(self, manifest: Manifest, new: Manifest) -> Manifest:
        """Put the shards of `new`, which lie on the disk, in place and let the set be `manifest`.

        May be killed at any point, then `finish` goes on.
        """
        texts = {"manifest": manifest_text(manifest.shards), "dataset": manifest.info.to_json()}
        files.put(self.plan_file, json.dumps(self._state() | texts | {"files": list(new.files)}).encode())
        return self.finish()

    def finish(self) -> Manifest:
        """Do what plan.json says is left to do; returns the finished set."""
        state = self._state()
        waiting = set(os.listdir(self.shards)) & set(state["files"]) if self.shards.exists() else set()
        if waiting or not self._is_committed(state):
            if not self.append:
                self._clear(set(state["files"]) - waiting)
            for name in sorted(waiting):
                os.replace(self.shards / name, self.folder / name)
            files.sync([self.folder])
            put_manifest(self.folder, state["manifest"], state["dataset"])
        self._empty_spool()
        files.remove(self.spool)
        return open_shards(self.folder)

    def _is_committed(self, state: dict[str, Any]) -> bool:
        path = self.folder / DATASET_FILE
        return path.exists() and path.read_text() == state["dataset"]

    def _clear(self, moved: set[str]) -> None:
        """Remove the set that is replaced, dataset.json first, but not what has been put in place already."""
        for name in [DATASET_FILE, *self.present()]:
            if name not in moved:
                files.remove(self.folder / name)

    def discard(self) -> None:
        """Leave nothing of a run that cannot go on, and no folder that was not there before."""
        files.remove(self.spool)
        if not os.listdir(self.folder):
            self.folder.rmdir()


def set_files(names: Iterable[str]) -> list[str]:
    """Those of some names that files of a set have, sorted, provenance last."""
    found = (name for name in names if name in (DATASET_FILE, MANIFEST_FILE) or _SET_FILE.fullmatch(name))
    return sorted(found, key=lambda name: (name.endswith(".parquet"), name))


def unlisted(names: Iterable[str], manifest: Manifest) -> list[str]:
    """Those of them that `manifest` does not list."""
    listed = {*manifest.files, DATASET_FILE, MANIFEST_FILE}
    return [name for name in set_files(names) if name not in listed]


def read_state(path: Path) -> dict[str, Any]:
    """What a JSON file says of unfinished work; empty when there is none."""
    state: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    return state


def unfinished(place: Path, target: str = "") -> SetError:
    """The error for an output that another run has left work for."""
    return SetError(
        f"{place}: unfinished work of another run{target} (other input, settings or tokenizer); finish that run, choose "
        "another output, or drop the work with --overwrite"
    )


def occupied(place: Path | Url, present: list[str], kind: str, way_out: str = _REPLACE) -> SetError:
    """The error for an output that holds something already."""
    return SetError(
        f"{place}: already holds {', '.join(present[:6])}{', …' if len(present) > 6 else ''} ({len(present)} {kind}); {way_out}"
    )
