"""Whole sets to and from object stores.

A set is written on disk first, then uploaded: shards, manifest.jsonl and last, on the condition that there is none,
dataset.json. What is done is kept until the set is complete there, so the same command goes on after whatever stopped
it, and sends nothing again that has arrived.
"""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tqdm import tqdm

from tokentar.shard_writer.errors import SettingError, TokentarError
from tokentar.shard_writer.format.dataset_info import DATASET_FILE
from tokentar.shard_writer.format.manifest import MANIFEST_FILE, Manifest, open_shards
from tokentar.shard_writer.storage import files
from tokentar.shard_writer.storage.urls import Url
from tokentar.shard_writer.writing.output import Output, occupied, read_state, set_files, unfinished

_STATE_FILE, _SET_FOLDER = "state.json", "set"
_AT_ONCE = 4  # files


def publish(
    target: Path | Url, spool_dir: str | None, plan: str | None, overwrite: bool, build: Callable[[Path], Manifest]
) -> Manifest:
    """Let `build` write a set into a folder. Under a URL it is put from there, also where an earlier run of this plan built it.

    plan: all that decides the bytes; None when the input has no name to know it by. Raises SetError when something else
    is there, StoreError when the store fails; what is written stays for the next run then.
    """
    if isinstance(target, Path):
        return build(target)
    stage = _stage(target, spool_dir)
    with files.locked(stage):
        finished = {"plan": plan, "finished": True}
        if plan is None or read_state(stage / _STATE_FILE) != finished:
            _prepare(stage, target, plan, overwrite)
            try:
                build(stage / _SET_FOLDER)
            except TokentarError:
                if not (stage / _SET_FOLDER).exists():
                    files.remove(stage)
                raise
            files.put(stage / _STATE_FILE, json.dumps(finished).encode())
        _upload(open_shards(stage / _SET_FOLDER), target, overwrite)
        files.remove(stage)
    return open_shards(target)


def is_under_way(where: Path | Url, spool_dir: str | None) -> bool:
    """Whether an earlier run has left work for this output. Raises SettingError for one that cannot be written to."""
    if isinstance(where, Path):
        return Output(where, None).is_unfinished
    if where.bucket.root.startswith("http"):
        raise SettingError(
            f"output: {where}: a web server can only be read from; needed: a folder, s3://, gs://, az:// or hf://"
        )
    return bool(read_state(_stage(where, spool_dir) / _STATE_FILE))


def _stage(target: Url, spool_dir: str | None) -> Path:
    """The folder of work for one output."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokentar" / "spool"
    return (Path(spool_dir) if spool_dir else cache) / f"{target.name}-{files.checksum(str(target).encode())}"


def _prepare(stage: Path, target: Url, plan: str | None, overwrite: bool) -> None:
    """Go on with the work of the same plan, or start afresh. Raises SetError when something else is in the way."""
    there = set_files(target.names())
    if there and not overwrite:
        raise occupied(target, there, "objects")
    state = read_state(stage / _STATE_FILE)
    if state and state["plan"] != plan and not overwrite:
        raise unfinished(stage, f" for {target}")
    if plan is None or state.get("plan") != plan:
        files.remove(stage / _SET_FOLDER)
    files.put(stage / _STATE_FILE, json.dumps({"plan": plan}).encode())


def _upload(manifest: Manifest, target: Url, overwrite: bool) -> None:
    target.abort_uploads()
    there, last = target.names(), target / DATASET_FILE
    content = (manifest.folder / DATASET_FILE).read_bytes()
    if DATASET_FILE in there and last.read_bytes() != content and overwrite:
        last.delete()  # before anything of the set that it completes is replaced
    files = manifest.files
    with (
        ThreadPoolExecutor(_AT_ONCE) as pool,
        tqdm(desc="upload", total=len(files), unit="file", disable=None) as bar,
    ):
        uploads = [pool.submit((target / name).upload, manifest.folder / name, *files[name]) for name in sorted(files)]
        try:
            for upload in uploads:
                upload.result()
                bar.update()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for name in set_files(there):
        if name not in files and name not in (DATASET_FILE, MANIFEST_FILE):
            (target / name).delete()
    (target / MANIFEST_FILE).put((manifest.folder / MANIFEST_FILE).read_bytes())
    last.create(content)


@contextmanager
def local_copy(source: str | os.PathLike[str] | Url) -> Iterator[Path]:
    """The folder of a set; of one in a store, a temporary copy."""
    manifest = open_shards(source)
    if isinstance(manifest.root, Path):
        yield manifest.root
        return
    root, files = manifest.root, manifest.files
    with TemporaryDirectory(prefix="tokentar-") as name, ThreadPoolExecutor(_AT_ONCE) as pool:
        folder = Path(name)
        for file in (MANIFEST_FILE, DATASET_FILE):
            (folder / file).write_bytes((root / file).read_bytes())

        def fetch(file: str) -> None:
            with open(folder / file, "wb") as copy:
                (root / file).download(copy, *files[file])

        list(pool.map(fetch, files))
        yield folder
