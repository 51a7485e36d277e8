"""S3, Google Cloud Storage, Azure and web servers, through obstore; configuration files and profiles of AWS, through boto3."""

import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import obstore
from obstore import store
from obstore.exceptions import AlreadyExistsError, BaseError

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.storage.client import PART_BYTES, READ_BYTES, Patience, Stat

_PARTS_AT_ONCE = 2


class ObjectStore:
    """S3, Google Cloud Storage, Azure or a web server, through obstore."""

    def __init__(self, root: str, patience: Patience, query: str = "") -> None:
        self.root, self.patience, self._query = root, patience, f"?{query}" if query else ""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """See Client."""
        return (BaseError,)

    @cached_property
    def _for_reading(self) -> Any:
        return self._connect(self.patience.stall_seconds)

    @cached_property
    def _once(self) -> Any:
        """For requests that a web server may not know, which are not tried again where it says so."""
        return self._connect(self.patience.stall_seconds, retries=0) if self._is_web else self._for_reading

    @property
    def _is_web(self) -> bool:
        return self.root.startswith("http")

    @cached_property
    def _for_writing(self) -> Any:
        return self._connect(self.patience.upload_seconds)

    def _connect(self, seconds: float, retries: int = 2) -> Any:
        config, options = _aws_config() if self.root.startswith("s3://") else ({}, {})
        limits = {
            "allow_http": config.get("endpoint", self.root).startswith("http://"),
            "connect_timeout": timedelta(seconds=self.patience.connect_seconds),
            "read_timeout": timedelta(seconds=seconds),
            "timeout": timedelta(days=1),  # of a whole download; by default 30 s
        }
        backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=1), "base": 2.0}
        retry = {"max_retries": retries, "backoff": backoff, "retry_timeout": timedelta(minutes=5)}
        if config:
            options["config"] = config
        connect: Any = store.from_url  # whose types cannot be told before the URL is known
        return connect(self.root + self._query, client_options=limits, retry_config=retry, **options)

    def stat(self, key: str) -> Stat:
        """See Client. A link may be signed for GET alone: where HEAD fails, the head of GET's answer is read."""
        try:
            return _as_stat(obstore.head(self._once, key))
        except FileNotFoundError:
            raise
        except BaseError:
            if not self._is_web:
                raise
        return _as_stat(obstore.get(self._once, key).meta)

    def read(self, key: str) -> tuple[int, Iterable[Any]]:
        """See Client."""
        found = obstore.get(self._for_reading, key)
        return found.meta["size"], found.stream(min_chunk_size=READ_BYTES)

    def put(self, key: str, content: Path | bytes) -> None:
        """See Client."""
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        options = {"use_multipart": size > PART_BYTES, "chunk_size": PART_BYTES, "max_concurrency": _PARTS_AT_ONCE}
        obstore.put(self._for_writing, key, content, **options)  # type: ignore[arg-type]

    def create(self, key: str, content: bytes) -> bool:
        """See Client."""
        try:
            obstore.put(self._for_writing, key, content, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def list(self, prefix: str) -> Iterator[tuple[str, Stat]]:
        """See Client."""
        for batch in obstore.list(self._once, prefix or None):
            yield from ((each["path"], _as_stat(each)) for each in batch)

    def delete(self, key: str) -> None:
        """See Client."""
        obstore.delete(self._for_writing, key)

    def abort_uploads(self, prefix: str) -> int:
        """See Client; of S3, where boto3 is installed. Elsewhere the stores' own rules drop them."""
        if not self.root.startswith("s3://") or (session := _aws_session()) is None:
            return 0
        client, bucket = session.create_client("s3"), self.root.removeprefix("s3://")
        pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix)
        found = [upload for page in pages for upload in page.get("Uploads", ())]
        for upload in found:
            client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        return len(found)


def _as_stat(meta: Any) -> Stat:
    seconds = int(meta["last_modified"].timestamp())  # 0 where a web server does not say
    return Stat(meta["size"], meta["e_tag"], seconds * 1_000_000_000 or None)


def _aws_session() -> Any:
    """Botocore's session; None where boto3 is not installed."""
    try:
        import boto3  # noqa: F401
        import botocore.session
    except ImportError:
        return None
    return botocore.session.get_session()


def _aws_config() -> tuple[dict[str, str], dict[str, Any]]:
    """Region and endpoint, by the variables or configuration files of AWS, and where credentials come from."""
    environment = os.environ
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    options: dict[str, Any] = {}
    session = None if "AWS_ACCESS_KEY_ID" in environment else _aws_session()
    if session is not None:
        import boto3
        from botocore.exceptions import ProfileNotFound
        from obstore.auth.boto3 import Boto3CredentialProvider

        try:
            scoped = session.get_scoped_config()
        except ProfileNotFound as error:
            raise SettingError(f"AWS_PROFILE: {error}; name one of ~/.aws/config") from None
        region, endpoint = region or scoped.get("region"), endpoint or scoped.get("endpoint_url")
        if session.get_credentials() is not None:
            options["credential_provider"] = Boto3CredentialProvider(boto3.Session(botocore_session=session))
    given = {"region": region, "endpoint": endpoint}
    return {key: value for key, value in given.items() if value}, options
