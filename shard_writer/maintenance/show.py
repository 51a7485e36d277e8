"""Sequences of a set as text, with their document boundaries."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.shard_writer.packing import policies
from tokentar.shard_writer.packing.token_ids import TokenIds

BOUNDARY = "⏎ end of document ⏎"


def rows_as_text(manifest: Manifest, tokenizer: Any, rows: int) -> Iterator[str]:
    """The first `rows` sequences of a set, decoded, each under a line that names it; padding is counted and not decoded.

    Raises SettingError for no rows.
    """
    if rows < 1:
        raise SettingError(f"rows: {rows}, needed: at least 1")
    eos = manifest.info.tokenizer.eos_token_id
    for index, entry in enumerate(manifest.shards):
        shard = manifest.open(index)
        for row in range(min(rows, entry.num_sequences)):
            ids = shard.rows[row]
            kept = ids[~policies.padding(ids[None], eos)[0]] if manifest.info.is_padded else ids
            padding = f", {len(ids) - len(kept)} padding" if manifest.info.is_padded else ""
            yield (
                f"── sequence {manifest.firsts[entry.shard] + row} · {entry.file_name} row {row} · {len(ids)} tokens, "
                f"{np.count_nonzero(kept == eos)} document ends{padding}"
            )
            yield f"\n{BOUNDARY}\n".join(_documents(kept, eos, tokenizer))
        rows -= entry.num_sequences
        if rows <= 0:
            return


def _documents(ids: TokenIds, eos: int, tokenizer: Any) -> list[str]:
    """The text of each document in a row, without its EOS."""
    ends = np.flatnonzero(ids == eos) + 1
    return [tokenizer.decode(part[part != eos].tolist()) for part in np.split(ids, ends)]
