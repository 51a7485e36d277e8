"""dataset.json: how a set was made and what is in it. It is written last: without it there is no set (G3)."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import numpy as np
from msgspec import Meta, ValidationError

from tokentar.shard_writer.errors import SetError
from tokentar.shard_writer.format.shards import RowFormat
from tokentar.shard_writer.storage.urls import Url

FORMAT = "tokentar"
VERSION = 1
DATASET_FILE = "dataset.json"
_MOST = (1 << 63) - 1  # of an int64
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Positive = Annotated[int, Meta(ge=1, le=_MOST)]
Length = Annotated[int, Meta(ge=1, lt=1 << 32)]  # a tar member holds 8 GiB at most


@dataclass(frozen=True, kw_only=True)
class TokenizerInfo:
    """The tokenizer that made a set."""

    name: str
    fingerprint: str  # of vocabulary and behaviour, see tokenizing/spec.py
    vocab_length: Positive  # len(tokenizer): added tokens count
    eos_token_id: Count


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What went in and came out of one split: tokens = sequences × seq_length + tail - padding."""

    documents: Count
    tokens: Count
    sequences: Count
    tail: Count
    padding: Count = 0  # ids that fill up rows, with the packing best_fit

    @classmethod
    def none(cls) -> "Totals":
        """Of nothing."""
        return cls(documents=0, tokens=0, sequences=0, tail=0)

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(**{key: value + getattr(other, key) for key, value in asdict(self).items()})


class Source(TypedDict, total=False):
    """Where the documents of a writing came from; `bytes` is None where it is not known."""

    input: list[str]
    in_memory: bool
    bytes: Count | None


class Settings(TypedDict, total=False):
    """The flags of a writing, and the ids around each document; sets of older versions lack some."""

    text_column: str
    input_format: str
    dataset_config: str | None
    dataset_split: str
    eos_token: str | None
    add_bos: bool | None
    name: str
    num_shards: Positive | None
    shuffle: bool
    packing: Literal["wrap", "best_fit"]
    validation_fraction: float
    bad_documents: Literal["error", "skip"]
    provenance: bool
    prefix_ids: list[Count]
    suffix_ids: list[Count]


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """dataset.json: how the set was made and what is in it."""

    format: str = FORMAT
    version: int = VERSION
    seq_length: Length
    dtype: Annotated[str, Meta(pattern="^uint(16|32)$")]
    tokenizer: TokenizerInfo
    source: dict[str, Any]  # see Source
    settings: dict[str, Any]  # what else decides the bytes, see Settings
    seed: int
    splits: dict[str, Totals]
    skipped: dict[str, Count]  # documents left out, by reason
    shards: Count | None = None  # lines of manifest.jsonl that belong to the set; None: all
    appended: list[dict[str, Any]] = field(default_factory=list)  # what was added later: source, settings, seed, …
    resharded: bool = False  # so that no writing makes these shards

    @property
    def totals(self) -> Totals:
        """Of all splits together."""
        return sum(self.splits.values(), start=Totals.none())

    @property
    def writings(self) -> list[dict[str, Any]]:
        """Source, settings and seed of each writing: first that of the set, then those that were appended."""
        return [{"source": self.source, "settings": self.settings, "seed": self.seed}, *self.appended]

    def to_json(self) -> str:
        """The text of dataset.json."""
        values = asdict(self)
        values["totals"] = asdict(self.totals) | {"skipped": values.pop("skipped")}
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "DatasetInfo":
        """The inverse, of parsed JSON. Raises ValidationError, which names the key, for what `to_json` does not write."""
        typed = msgspec.convert(values, _File)
        known = {key: value for key, value in values.items() if key != "totals"} | {"skipped": typed.totals.skipped}
        _refuse_unknown(values, {field.name for field in fields(cls)} - {"skipped"} | {"totals"}, "")
        _refuse_unknown(values["tokenizer"], {field.name for field in fields(TokenizerInfo)}, "tokenizer")
        for name, totals in values["splits"].items():
            _refuse_unknown(totals, {field.name for field in fields(Totals)}, f"splits.{name}")
        info = msgspec.convert(known, cls)
        for key, wanted in asdict(info.totals).items():
            if (seen := getattr(typed.totals, key)) != wanted:
                raise ValidationError(f"{seen}, but the splits have {wanted} together - at `$.totals.{key}`")
        return info

    @cached_property
    def is_padded(self) -> bool:
        """Whether rows may end in padding: see packing/policies.py."""
        return bool(self.settings.get("packing", "wrap") != "wrap")

    @cached_property
    def row_format(self) -> RowFormat:
        """Where things lie in a row of this set."""
        return RowFormat(self.seq_length, np.dtype(self.dtype).newbyteorder("<"))


@dataclass(frozen=True, kw_only=True)
class _FileTotals(Totals):
    """`totals` as the file has them."""

    skipped: dict[str, Count]


class _Appended(TypedDict):
    """An entry of `appended`."""

    source: Source
    settings: Settings
    seed: int
    splits: dict[str, Totals]
    skipped: dict[str, Count]
    shards: Count


@dataclass(frozen=True, kw_only=True)
class _File:
    """The types of all that dataset.json holds; unknown keys are not looked at."""

    tokenizer: TokenizerInfo
    source: Source
    settings: Settings
    splits: dict[str, Totals]
    totals: _FileTotals
    appended: list[_Appended] = field(default_factory=list)


def _refuse_unknown(values: Iterable[str], known: set[str], where: str) -> None:
    """Raises ValidationError for a key that this version does not know."""
    if unknown := sorted(set(values) - known):
        raise ValidationError(f"unknown key - at `$.{where}{'.' if where else ''}{unknown[0]}`")


def place_and_fault(error: ValidationError) -> str:
    """What a ValidationError says as KEY: FAULT."""
    fault, _, place = str(error).partition(" - at `$")
    return f"{place.strip('.`')}: {fault}" if place else fault


def read_info(root: Path | Url) -> DatasetInfo:
    """dataset.json. Raises SetError when it is missing, damaged or of another version."""
    path = root / DATASET_FILE
    try:
        values = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise SetError(
            f"{root}: no {DATASET_FILE}, so there is no finished set here; run `tokentar write` (again) to finish it"
        ) from None
    except (ValueError, RecursionError) as error:
        raise SetError(f"{path}: not JSON ({error}); write the set again") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise SetError(f'{path}: not the {DATASET_FILE} of a tokentar set (no "format": "{FORMAT}")')
    if values.get("version") != VERSION:
        raise SetError(
            f"{path}: format version {values.get('version')}, this tokentar reads {VERSION}; install the one that wrote it"
        )
    try:
        return DatasetInfo.from_json(values)
    except ValidationError as error:
        raise SetError(f"{path}: {place_and_fault(error)}; restore the file, or write the set again") from None
