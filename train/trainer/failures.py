"""What libraries raise while Trainer sets up, reads or writes, in the words of whoever started it: which file or flag, and the way out."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from tokentar.shard_writer.errors import SetError, SettingError, StoreError, TokentarError

_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)  # where an OSError names no file
_OF_TORCH_SAVE = re.compile("PytorchStreamWriter|inline_container|file write failed")  # a RuntimeError
_FULL = ("No space left", "Disk quota exceeded", "file write failed", "unexpected pos")
_LONGEST = 300  # characters of a reason that is told


class Underway:
    """Which checkpoint Trainer reads or writes at the moment, so that what goes wrong meanwhile names it."""

    def __init__(self) -> None:
        self.is_starting = False  # until the first batch: models are wrapped, optimizers made, checkpoints loaded
        self.read_from: Path | None = None
        self.written_to: Path | None = None

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Raises SetError, SettingError or StoreError in place of what a library raised."""
        try:
            yield
        except TokentarError:
            raise
        except Exception as error:  # each library raises its own
            if self.written_to is not None and _is_of_writing(error):
                raise _not_written(self.written_to, error) from error
            if self.is_starting and self.read_from is not None:
                raise SetError(
                    f"{self.read_from}: cannot be loaded into this model and optimizer: {reason(error)}; use the settings that it "
                    "was saved with, or an earlier checkpoint"
                ) from error
            if self.is_starting and isinstance(error, ImportError):
                raise SettingError(reason(error)) from error
            raise
        finally:
            self.is_starting, self.read_from, self.written_to = False, None, None


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raises StoreError, naming the file, where a library fails to write into a folder."""
    try:
        yield
    except Exception as error:
        if isinstance(error, TokentarError) or not _is_of_writing(error):
            raise
        raise _not_written(folder, error) from error


@contextmanager
def setting(name: str, value: object, way_out: str) -> Iterator[None]:
    """Raises SettingError, naming the setting, for what a library raises on its account."""
    try:
        yield
    except TokentarError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, ImportError, OSError) as error:
        raise SettingError(f"{name}: {value}: {reason(error)}; {way_out}") from error


def reason(error: BaseException) -> str:
    """What an error says, on one line, with its type where it says little without."""
    text = " ".join(str(error).split())
    alone = isinstance(error, (ValueError, ImportError, OSError)) and not isinstance(error, UnicodeError)
    return (text if alone and text else f"{type(error).__name__}: {text}")[:_LONGEST]


def _is_of_writing(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _OF_DISKS or (error.errno is not None and error.filename is not None)
    return isinstance(error, SafetensorError) or bool(_OF_TORCH_SAVE.search(str(error)))


def _not_written(folder: Path, error: BaseException) -> StoreError:
    named = getattr(error, "filename", None)
    newest = max(
        (path for path in folder.glob("*") if path.is_file()), key=lambda path: path.stat().st_mtime_ns, default=folder
    )
    why = reason(error)
    if any(text in why for text in _FULL):
        why = f"no space left on its disk ({why:.120})"
    return StoreError(
        f"{named or newest}: cannot be written: {why}; make room and go on from the last whole checkpoint with "
        "--resume_from_checkpoint true, which passes over the unfinished one"
    )


@contextmanager
def of_hub(kind: type[TokentarError], what: str, way_out: str) -> Iterator[None]:
    """Raises an error of that kind for whatever goes wrong between here and a hub, each HTTP client having its own errors."""
    try:
        yield
    except Exception as error:
        raise kind(f"{what}: {reason(error)}; {way_out}") from error
