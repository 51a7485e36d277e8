"""What a writing will need, estimated before it starts: room on the disk of the output, and ranges to read."""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from tokentar.shard_writer.inputs.json_lines import CompressedJsonLines
from tokentar.shard_writer.inputs.source import Source
from tokentar.shard_writer.packing import layout
from tokentar.shard_writer.writing.spool import DOCUMENT
from tokentar.shard_writer.writing.tokenize_step import PART_BYTES

_BYTES_PER_TOKEN, _BYTES_PER_DOCUMENT = 4, 2_000  # of text, as English and source code have them
_COMPRESSION, _ROW_BYTES = 4, 1 << 13
GB = 1e9
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class HeadRoom:
    """An estimate for so many bytes of text in so many tasks."""

    text: int
    tasks: int
    token_bytes: int
    num_shards: int | None = None

    @property
    def set_bytes(self) -> int:
        """Bytes of the finished shards."""
        return self.text // _BYTES_PER_TOKEN * self.token_bytes

    @property
    def spool_bytes(self) -> int:
        """Bytes of the spool: the tokens, and what each document is ordered by."""
        return self.set_bytes + self.text // _BYTES_PER_DOCUMENT * DOCUMENT.itemsize

    @property
    def parts(self) -> int:
        """Files of the spool."""
        return max(self.tasks, -(-self.set_bytes // PART_BYTES))

    @property
    def ranges(self) -> int:
        """Ranges of these files that the shards are read from: one of each part for each shard."""
        return self.parts * (
            self.num_shards or layout.default_num_shards(max(1, self.set_bytes // _ROW_BYTES), _ROW_BYTES)
        )

    def words(self) -> str:
        """In one line."""
        return (
            f"head room: about {self.spool_bytes / GB:,.1f} GB of spool and {self.set_bytes / GB:,.1f} GB of shards; {self.tasks:,} "
            f"tasks write {self.parts:,} parts, shards read {self.ranges:,} ranges of about "
            f"{self.spool_bytes / self.ranges / 1e3:,.1f} kB"
        )


def estimate(source: Source, token_bytes: int, num_shards: int | None) -> HeadRoom | None:
    """The estimate for a planned input, compressed files counted fourfold; None when its size is not known."""
    if source.size is None:
        return None
    tasks = list(source.tasks)
    text = sum(
        task.reader.size * (_COMPRESSION if isinstance(task.reader, CompressedJsonLines) else 1) for task in tasks
    )
    return HeadRoom(text=text, tasks=len(tasks), token_bytes=token_bytes, num_shards=num_shards)


def tell(room: HeadRoom | None, folder: Path) -> None:
    """Log an estimate, with a warning when the disk that `folder` is on has less room."""
    if room is None:
        return
    _log.info("%s", room.words())
    free, needed = shutil.disk_usage(folder).free, room.spool_bytes + room.set_bytes
    if free < needed:
        _log.warning(
            "%s: %.1f GB free, about %.1f GB needed; make room, or choose another disk", folder, free / GB, needed / GB
        )
