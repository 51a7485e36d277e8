"""What a user names: a path of this machine, or the URL of an object store."""

import os
import re
from pathlib import Path
from urllib.parse import unquote

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.storage.client import Patience
from tokentar.shard_writer.storage.urls import _CREDENTIALS, EXTRAS, Bucket, Url

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_HUB_KINDS = ("datasets", "spaces")
_WEB = ("http", "https")


def is_url(name: str) -> bool:
    """Whether a name is a URL (file:// apart) and no local path."""
    match = _URL.match(name)
    return match is not None and match[1].lower() != "file"


def without_query(name: str) -> str:
    """A web address without what follows its `?`, which may be a signature and is never shown; any other name as it is."""
    match = _URL.match(name)
    return name.partition("?")[0] if match is not None and match[1].lower() in _WEB else name


def place(
    name: str | os.PathLike[str] | Url, patience: Patience | None = None, *, with_query: bool = False
) -> Path | Url:
    """The local path or the URL that a user names; `with_query`: a web address may have one.

    Raises SettingError for a URL that cannot be used.
    """
    if isinstance(name, Url):
        return name
    text = os.fspath(name)
    match = _URL.match(text)
    if match is None:
        if (scheme := text.partition(":/")[0]) in EXTRAS:
            raise SettingError(f"{text}: one slash behind {scheme}:, needed: two, {scheme}://…")
        return Path(text)
    scheme, rest, query = match[1].lower(), match[2], ""
    if with_query and scheme in _WEB:
        rest, _, query = rest.partition("?")
    rest = rest.strip("/")
    if scheme == "file":
        return Path("/" + rest)
    if scheme not in EXTRAS:
        raise SettingError(
            f"{scheme}://: no store that is known; these are: {', '.join(f'{known}://' for known in EXTRAS)}"
        )
    _refuse_secrets(scheme, rest)
    parts = rest.split("/")
    count = 1 if scheme != "hf" else 3 if parts[0] in _HUB_KINDS else 2
    if len(parts) < count or not all(parts[:count]):
        raise SettingError(
            f"{without_query(text)}: names no bucket or repository; needed: {scheme}://BUCKET/FOLDER, hf://datasets/USER/NAME/FOLDER"
        )
    key = "/".join(parts[count:])
    bucket = Bucket(f"{scheme}://{'/'.join(parts[:count])}", patience or Patience(), query)
    return Url(bucket, unquote(key) if scheme in _WEB else key)


def on_disk(where: Path | Url) -> Path:
    """The same, of a place on this machine's disk. Raises SettingError when it is elsewhere."""
    if isinstance(where, Url):
        raise SettingError(f"{where}: not on this machine's disk, which this needs; copy it there")
    return where


def _refuse_secrets(scheme: str, rest: str) -> None:
    """A URL gets into logs and manifests, so it may hold no password and no signature."""
    if scheme != "hf" and "@" in rest.split("/")[0]:
        raise SettingError(f"{scheme}://: credentials within a URL; {_CREDENTIALS.get(scheme, 'leave them out')}")
    if "?" in rest or "#" in rest:
        raise SettingError(
            f"{scheme}://{rest.partition('?')[0]}: a URL with a query or fragment; leave out what follows ? or #"
        )
