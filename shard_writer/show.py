"""Sequences of a set as text, with their document boundaries."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from shard_writer import tokens
from shard_writer.errors import SetError, SettingError
from shard_writer.manifest import Manifest
from shard_writer.pretrained import load_tokenizer
from shard_writer.shards import TokenIds

BOUNDARY = "⏎ end of document ⏎"


def load_matching_tokenizer(manifest: Manifest, name: str | None = None) -> Any:
    """The tokenizer of a set, by `name` or by the one in dataset.json. Raises SetError when it is another one (G9)."""
    name = name or manifest.info.tokenizer.name
    if not name:
        raise SetError(
            f"{manifest.root}: written with a tokenizer that had no name; name the folder of it with --tokenizer"
        )
    tokenizer = load_tokenizer(name)
    check_tokenizer(manifest, tokenizer, name)
    return tokenizer


def check_tokenizer(manifest: Manifest, tokenizer: Any, name: str) -> None:
    """Raises SetError when `tokenizer` is not the one that wrote the set."""
    info = manifest.info.tokenizer
    seen = tokens.fingerprint(tokenizer, info.eos_token_id)
    if seen != info.fingerprint:
        raise SetError(
            f"tokenizer {name!r}: fingerprint {seen} ({len(tokenizer)} tokens), but {manifest.root} was written with {info.name!r}, "
            f"fingerprint {info.fingerprint} ({info.vocab_length} tokens); use that one, or write the set again"
        )


def rows_as_text(manifest: Manifest, tokenizer: Any, rows: int) -> Iterator[str]:
    """The first `rows` sequences of a set, decoded, each under a line that names it. Raises SettingError for no rows."""
    if rows < 1:
        raise SettingError(f"rows: {rows}, needed: at least 1")
    eos = manifest.info.tokenizer.eos_token_id
    for index, entry in enumerate(manifest.shards):
        shard = manifest.open(index)
        for row in range(min(rows, entry.num_sequences)):
            ids = shard.rows[row]
            documents = int(np.count_nonzero(ids == eos))
            number = manifest.firsts[entry.shard] + row
            yield f"── sequence {number} · {entry.file_name} row {row} · {len(ids)} tokens, {documents} document ends"
            yield f"\n{BOUNDARY}\n".join(_documents(ids, eos, tokenizer))
        rows -= entry.num_sequences
        if rows <= 0:
            return


def _documents(ids: TokenIds, eos: int, tokenizer: Any) -> list[str]:
    """The text of each document in a row, without its EOS."""
    ends = np.flatnonzero(ids == eos) + 1
    return [tokenizer.decode(part[part != eos].tolist()) for part in np.split(ids, ends)]
