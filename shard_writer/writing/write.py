"""From documents to a finished set: plan the input, tokenize it, assign tokens to shards, write the shards, publish.

tokenize_step.py and shard_step.py are what the workers do, assignment.py is the arithmetic between them, output.py the
folder, append.py and complete.py what is there already; this file is their order.
"""

import json
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tokentar.shard_writer.engines import local, ray
from tokentar.shard_writer.engines.local import Engine
from tokentar.shard_writer.errors import InputError, SettingError
from tokentar.shard_writer.format.dataset_info import VERSION, DatasetInfo
from tokentar.shard_writer.format.manifest import Manifest, first_numbers
from tokentar.shard_writer.format.shards import RowFormat
from tokentar.shard_writer.inputs import planning
from tokentar.shard_writer.inputs.source import Source
from tokentar.shard_writer.packing import layout
from tokentar.shard_writer.storage import files, places
from tokentar.shard_writer.storage.urls import Url
from tokentar.shard_writer.tokenizing.describe import describe
from tokentar.shard_writer.tokenizing.loading import load_tokenizer
from tokentar.shard_writer.tokenizing.spec import TokenizerSpec
from tokentar.shard_writer.writing import complete, disk_space, progress, shard_plan, spool, tokenize_step, upload
from tokentar.shard_writer.writing.append import Base, added
from tokentar.shard_writer.writing.arguments import WriteArguments
from tokentar.shard_writer.writing.origins import Origins
from tokentar.shard_writer.writing.output import Output
from tokentar.shard_writer.writing.shard_step import ReduceStep
from tokentar.shard_writer.writing.tokenize_step import MapStep

_log = logging.getLogger(__name__)
DECIDING = (
    *("text_column", "input_format", "dataset_config", "dataset_split", "eos_token", "add_bos", "name", "num_shards"),
    *("shuffle", "packing", "validation_fraction", "bad_documents", "provenance"),
)  # flags that decide the bytes, beside the input, the tokenizer, the seed and seq_length


def write_shards(
    *,
    input: str | os.PathLike[str] | list[str | os.PathLike[str]] | Iterable[Mapping[str, Any]],
    tokenizer: Any,
    output: str | os.PathLike[str] | Url,
    **settings: Any,
) -> Manifest:
    """Tokenize documents, pack them into sequences and write them as a finished set of shards.

    input: paths, folders, globs or data set names; or a `datasets` data set or any iterable of mappings. tokenizer: a
    name, a folder or a `transformers` tokenizer. The other names and defaults are the flags of `tokentar
    write` (see WriteArguments). Where the output holds the very set already, nothing is written. Raises SettingError,
    InputError or SetError; then the output is as it was.
    """
    return write_or_find(input=input, tokenizer=tokenizer, output=output, **settings)[0]


def write_or_find(
    *, input: Any, tokenizer: Any, output: str | os.PathLike[str] | Url, **settings: Any
) -> tuple[Manifest, bool]:
    """The same, and whether anything was written: not where the output holds all of it already."""
    names = _names(input)
    tokenizer = os.fspath(tokenizer) if isinstance(tokenizer, os.PathLike) else tokenizer
    name = tokenizer if isinstance(tokenizer, str) else str(tokenizer.name_or_path)
    arguments = WriteArguments(input=names or [], tokenizer=name, output=str(output), **settings)
    if arguments.engine == "local" and arguments.num_workers:
        local.begin()
    spec = _describe(tokenizer, arguments)
    source = planning.plan_rows(input, text_column=arguments.text_column) if names is None else _plan(arguments)
    plan = _identity(arguments, spec, source)
    where = places.place(output)
    if arguments.append and not isinstance(where, Path):
        raise SettingError(f"append: {where}: cannot be appended to in place; append to a copy on disk and upload that")
    if not upload.is_under_way(where, arguments.spool_dir) and not arguments.overwrite:
        wanted = _info(arguments, spec, source)
        if there := complete.find(where, wanted, source, append=arguments.append):
            return there, False

    def build(folder: Path) -> Manifest:
        return _write_to(Output(folder, plan, arguments.overwrite, arguments.append), arguments, spec, source)

    with _connected(arguments):
        return upload.publish(where, arguments.spool_dir, plan, arguments.overwrite, build), True


def _connected(arguments: WriteArguments) -> AbstractContextManager[None]:
    """What the engine needs for as long as it runs, tried before anything is written."""
    if arguments.engine == "local":
        return nullcontext()
    return ray.connected(arguments.ray_address, arguments.num_workers)


def _engine(arguments: WriteArguments, spec: TokenizerSpec, target: Output) -> AbstractContextManager[Engine]:
    if arguments.engine == "local":
        return local.local(arguments.num_workers, tokenize_step.prepare, spec)
    return ray.engine(arguments.workers, tokenize_step.prepare, spec, target.plan_file)


def _write_to(target: Output, arguments: WriteArguments, spec: TokenizerSpec, source: Source) -> Manifest:
    """All steps, in a folder on disk."""
    with files.locked(target.spool):
        base = Base(target.prepare())
        if target.is_publishing:
            _log.info("publish: an earlier run did all the rest")
            return target.finish()
        try:
            base.check(spec, arguments.seq_length, arguments.packing)
            return _write(arguments, spec, source, target, base)
        except (InputError, SettingError):
            target.discard()
            raise


def _names(given: Any) -> list[str] | None:
    """What is given as names of inputs; None when it is the documents themselves."""
    names = given if isinstance(given, (list, tuple)) else [given]
    return [os.fspath(name) for name in names] if all(isinstance(name, (str, os.PathLike)) for name in names) else None


def _describe(tokenizer: Any, arguments: WriteArguments) -> TokenizerSpec:
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    return describe(
        loaded,
        name=arguments.tokenizer,
        eos_token=arguments.eos_token,
        add_bos=arguments.add_bos,
        engine=arguments.tokenizer_engine,
    )


def _plan(arguments: WriteArguments) -> Source:
    return planning.plan_files(
        arguments.input,
        text_column=arguments.text_column,
        input_format=arguments.input_format,
        dataset_config=arguments.dataset_config,
        dataset_split=arguments.dataset_split,
    )


def _settings(arguments: WriteArguments, spec: TokenizerSpec) -> dict[str, Any]:
    return {key: getattr(arguments, key) for key in DECIDING} | spec.surroundings


def _identity(arguments: WriteArguments, spec: TokenizerSpec, source: Source) -> str | None:
    if source.identity is None:
        return None
    settings = _settings(arguments, spec) | {"append": arguments.append}
    return json.dumps(
        [VERSION, spool.VERSION, source.identity, settings, asdict(spec.info), arguments.seq_length, arguments.seed]
    )


def _write(arguments: WriteArguments, spec: TokenizerSpec, source: Source, target: Output, base: Base) -> Manifest:
    """All steps, with the output's lock held."""
    map_step = _map_step(arguments, source, target)
    reduce_step = _reduce_step(arguments, spec, target)
    if arguments.engine == "ray":
        disk_space.tell(disk_space.estimate(source, spec.dtype.itemsize, arguments.num_shards), target.spool)
    with _engine(arguments, spec, target) as engine:
        records = progress.map_tasks(engine, map_step, source, target.spool)
        source.refuse_changes()
        Origins.of(records, base.totals.documents).save(target.spool)
        skipped = added(record.skipped for record in records)
        shape = shard_plan.layout_of(records, map_step, reduce_step)
        totals, shards, tasks = shard_plan.cut(engine, arguments, map_step, shape, base, skipped)
        entries = progress.make_shards(engine, reduce_step, reduce_step.folder, tasks, shards)
    info = replace(_info(arguments, spec, source), splits=totals, skipped=skipped, shards=len(entries))
    new = Manifest(target.folder, info, entries, first_numbers(entries))
    return target.publish(base.extended(new), new)


def _info(arguments: WriteArguments, spec: TokenizerSpec, source: Source) -> DatasetInfo:
    """What dataset.json will say, but for what comes out."""
    return DatasetInfo(
        seq_length=arguments.seq_length,
        dtype=spec.dtype.name,
        tokenizer=spec.info,
        source={"input": source.names, "in_memory": source.identity is None, "bytes": source.size},
        settings=_settings(arguments, spec),
        seed=arguments.seed,
        splits={},
        skipped={},
    )


def _map_step(arguments: WriteArguments, source: Source, target: Output) -> MapStep:
    cells = layout.num_cells(source.size) if arguments.shuffle else 1
    return MapStep(
        folder=target.spool,
        text_column=arguments.text_column,
        bad_documents=arguments.bad_documents,
        shuffle=arguments.shuffle,
        seed=arguments.seed,
        validation_fraction=arguments.validation_fraction,
        train_cells=cells,
        validation_cells=max(1, round(cells * arguments.validation_fraction)) if arguments.validation_fraction else 0,
    )


def _reduce_step(arguments: WriteArguments, spec: TokenizerSpec, target: Output) -> ReduceStep:
    return ReduceStep(
        folder=target.shards,
        origins=target.spool if arguments.provenance else None,
        row_format=RowFormat(arguments.seq_length, spec.dtype),
        packing=arguments.packing,
        fill=spec.info.eos_token_id,
        shuffle=arguments.shuffle,
        seed=arguments.seed,
    )
