"""dataset.json: how a set was made and what is in it. It is written last: without it there is no set (G3)."""

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tokentar.shard_writer.errors import SetError
from tokentar.shard_writer.format.shards import RowFormat
from tokentar.shard_writer.storage.urls import Url

FORMAT = "tokentar"
VERSION = 1
DATASET_FILE = "dataset.json"


@dataclass(frozen=True, kw_only=True)
class TokenizerInfo:
    """The tokenizer that made a set."""

    name: str
    fingerprint: str  # of vocabulary and behaviour, see tokens.py
    vocab_length: int  # len(tokenizer): added tokens count
    eos_token_id: int


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What went in and came out of one split: tokens = sequences × seq_length + tail - padding."""

    documents: int
    tokens: int
    sequences: int
    tail: int
    padding: int = 0  # ids that fill up rows, with the packing best_fit

    @classmethod
    def none(cls) -> "Totals":
        """Of nothing."""
        return cls(documents=0, tokens=0, sequences=0, tail=0)

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(**{key: value + getattr(other, key) for key, value in asdict(self).items()})


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """dataset.json: how the set was made and what is in it."""

    format: str = FORMAT
    version: int = VERSION
    seq_length: int
    dtype: str
    tokenizer: TokenizerInfo
    source: dict[str, Any]  # inputs, text column
    settings: dict[str, Any]  # what else decides the bytes
    seed: int
    splits: dict[str, Totals]
    skipped: dict[str, int]  # documents left out, by reason
    shards: int | None = None  # lines of manifest.jsonl that belong to the set; None: all
    appended: list[dict[str, Any]] = field(default_factory=list)  # what was added later: source, settings, seed, …
    resharded: bool = False  # so that no writing makes these shards

    @property
    def totals(self) -> Totals:
        """Of all splits together."""
        return sum(self.splits.values(), start=Totals.none())

    def to_json(self) -> str:
        """The text of dataset.json."""
        values = asdict(self)
        values["totals"] = asdict(self.totals) | {"skipped": values.pop("skipped")}
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "DatasetInfo":
        """The inverse, of parsed JSON. Raises KeyError, TypeError or AttributeError for other keys."""
        skipped = values.pop("totals")["skipped"]
        splits = {name: Totals(**totals) for name, totals in values.pop("splits").items()}
        info = cls(tokenizer=TokenizerInfo(**values.pop("tokenizer")), splits=splits, skipped=skipped, **values)
        if type(info.seq_length) is not int or info.dtype not in ("uint16", "uint32"):
            raise TypeError(f"{info.seq_length!r} tokens of {info.dtype!r}, needed: a number, of uint16 or uint32")
        return info

    @cached_property
    def is_padded(self) -> bool:
        """Whether rows may end in fill: see packing.py."""
        return bool(self.settings.get("packing", "wrap") != "wrap")

    @cached_property
    def row_format(self) -> RowFormat:
        """Where things lie in a row of this set."""
        return RowFormat(self.seq_length, np.dtype(self.dtype).newbyteorder("<"))


def read_info(root: Path | Url) -> DatasetInfo:
    """dataset.json. Raises SetError when it is missing, damaged or of another version."""
    path = root / DATASET_FILE
    try:
        values = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise SetError(
            f"{root}: no {DATASET_FILE}, so there is no finished set here; run `tokentar write` (again) to finish it"
        ) from None
    except ValueError as error:
        raise SetError(f"{path}: not JSON ({error}); write the set again") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise SetError(f'{path}: not the {DATASET_FILE} of a tokentar set (no "format": "{FORMAT}")')
    if values.get("version") != VERSION:
        raise SetError(
            f"{path}: format version {values.get('version')}, this tokentar reads {VERSION}; install the one that wrote it"
        )
    try:
        return DatasetInfo.from_json(values)
    except (KeyError, TypeError, AttributeError) as error:
        raise SetError(f"{path}: a key is missing, unknown or wrong ({error}); write the set again") from None
