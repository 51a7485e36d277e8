"""Batches of the rows that a rank reads, by itself or through the worker processes of a DataLoader."""

import multiprocessing
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from tokentar.shard_writer.errors import TokentarError
from tokentar.shard_writer.storage.urls import Url
from tokentar.train.data.batches import rebatch
from tokentar.train.data.dataset import Block, Span
from tokentar.train.data.reading import Reading
from tokentar.train.distributed.world import World
from tokentar.train.order.plan import block_rows


def batches_of(reading: Reading, world: World, span: Span, batch_size: int) -> Iterator[Block]:
    """This rank's rows of a span: numbers (batch_size,) and ids (batch_size, seq_length), int64."""
    if not world.num_workers:
        yield from reading.rows(world, span, batch_size, np.dtype(np.int64))
        return
    info = reading.info
    size = block_rows(info.row_format.payload)
    is_remote = any(isinstance(manifest.root, Url) for manifest in reading.manifests)
    workers = DataLoader(
        reading.rows(world, span, size, info.row_format.dtype),
        batch_size=None,
        num_workers=world.num_workers,
        collate_fn=_as_is,  # type: ignore[arg-type]
        multiprocessing_context=_fork_server() if is_remote else None,
        generator=torch.Generator(),  # its own: the global one, which dropout draws from, must not move
    )
    yield from rebatch(_with_plain_errors(workers), world.num_workers, batch_size, info.seq_length)


def _fork_server() -> Any:
    """Starts workers from a process in which no client of a store has been at work: such a client does not survive a fork."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tokentar.train.data.dataset"]
    )  # so that torch is imported once, and not by each worker
    return context


def _with_plain_errors(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks of workers, whose errors say what they said in the worker, without the traceback that torch puts before it."""
    try:
        yield from blocks
        return
    except TokentarError as error:
        kind, text = type(error), str(error)
        error.__traceback__ = None  # whose frames would keep the workers alive
    raise kind(text.rpartition(f"{kind.__name__}: ")[2].strip())


def _as_is(block: Block) -> Block:
    """Blocks stay numpy arrays: pickling them through a pipe is faster than sharing tensors of this size."""
    return block
