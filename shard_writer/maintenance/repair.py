"""verify --repair: write a set again beside itself, from its own dataset.json, and put back the files that are damaged.

Only what has the checksum that the manifest lists is put back, so an input or a tokenizer that has changed since can do
no harm. It takes as long as writing the set did, and as much space, until it is done.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokentar.shard_writer.errors import SetError, TokentarError
from tokentar.shard_writer.format.dataset_info import DatasetInfo, read_info
from tokentar.shard_writer.format.manifest import MANIFEST_FILE, Manifest, manifest_text, open_shards, put_manifest
from tokentar.shard_writer.inputs import planning
from tokentar.shard_writer.maintenance import verify
from tokentar.shard_writer.storage import files
from tokentar.shard_writer.writing.output import Output
from tokentar.shard_writer.writing.write import DECIDING, write_shards


def repair(root: Path, workers: int | None = None) -> Iterator[str]:
    """Put back what is damaged, saying so file by file. Raises SetError when nothing can be written again."""
    info = read_info(root)
    try:
        manifest: Manifest | None = open_shards(root)
    except SetError:
        manifest = None  # lines of it are lost: all of it is written again
    damaged = {fault.file for fault in verify.find(manifest)} if manifest else set()
    if manifest and not damaged & manifest.files.keys():
        return
    output = Output(root, None)
    with files.locked(output.spool):
        scratch = output.spool / "repair"
        files.remove(scratch)
        try:
            rebuilt = _write_again(root, info, scratch, workers)
            if manifest is None:
                yield _restore_manifest(root, info, rebuilt)
                manifest = open_shards(root)
                damaged = {fault.file for fault in verify.find(manifest)}
            yield from _put_back(manifest, rebuilt, damaged)
        finally:
            files.remove(scratch)
            if not output.is_unfinished:
                output.discard()


def _restore_manifest(root: Path, info: DatasetInfo, rebuilt: Manifest) -> str:
    if rebuilt.info != info:
        raise SetError(f"{root}: cannot be repaired: its input gives another set now; write the set again")
    put_manifest(root, manifest_text(rebuilt.shards), info.to_json())
    return f"{MANIFEST_FILE}: written again"


def _put_back(manifest: Manifest, rebuilt: Manifest, damaged: set[str]) -> Iterator[str]:
    written = rebuilt.files
    for name, wanted in manifest.files.items():
        if name in damaged and written.get(name) == wanted:
            os.replace(rebuilt.folder / name, manifest.folder / name)
            yield f"{name}: written again"
        elif name in damaged:
            yield f"{name}: cannot be repaired: the input, or a library, gives other bytes now; write the set again"
    files.sync([manifest.folder])


def _write_again(root: Path, info: DatasetInfo, folder: Path, workers: int | None) -> Manifest:
    """The same set in another folder. Raises SetError when that is not possible."""
    cannot = f"{root}: cannot be repaired: "
    if info.resharded:
        raise SetError(f"{cannot}it was made by reshard; reshard its source again")
    try:
        for number, writing in enumerate(info.writings):
            manifest = _write(info, writing, folder, append=number > 0, workers=workers)
    except TokentarError as error:
        raise SetError(f"{cannot}{error}") from error
    except KeyError as error:
        raise SetError(f"{cannot}dataset.json has no {error}; write the set again") from None
    return manifest


def _write(info: DatasetInfo, writing: dict[str, Any], folder: Path, *, append: bool, workers: int | None) -> Manifest:
    source = writing["source"]
    settings = {key: value for key, value in writing["settings"].items() if key in DECIDING}
    chosen = {key: settings[key] for key in ("input_format", "dataset_config", "dataset_split") if key in settings}
    if source["in_memory"]:
        raise SetError("its documents came from memory")
    planned = planning.plan_files(source["input"], text_column=settings["text_column"], **chosen)
    if planned.size != source["bytes"]:
        raise SetError(f"its input has {planned.size} bytes, and had {source['bytes']} when the set was written")
    return write_shards(
        input=source["input"],
        tokenizer=info.tokenizer.name,
        output=folder,
        seq_length=info.seq_length,
        seed=writing["seed"],
        append=append,
        overwrite=True,  # also where the same was appended twice
        workers=workers,
        **settings,
    )
