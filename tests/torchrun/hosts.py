"""Two hosts on one machine: network namespaces with an address and a name each, and torchrun on them.

This needs root and `ip`; where it cannot be had, `hosts` raises Unavailable with the reason.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.torchrun.start import ROOT

NETWORK, PORT = "10.214.77", 29_477
_LISTEN = (
    "import socket; made = socket.create_server(('127.0.0.1', 0)); "
    "socket.send_fds(socket.socket(fileno=0), [b'.'], [made.fileno()])"
)


class Unavailable(Exception):
    """This machine makes no namespaces."""


@dataclass
class Host:
    """A host, and the torchrun that was last started on it."""

    name: str
    namespace: str
    number: int
    log: Path
    environment: dict[str, str] = field(default_factory=dict)  # of what runs on it, beside the tests' own
    agent: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number}"

    def torchrun(
        self, *arguments: str, ranks: int, nodes: str, max_restarts: int = 0, hidden: Path | None = None
    ) -> None:
        """Start an agent whose rendezvous is on host 1. hidden: a folder that is empty when it is seen from here."""
        hide = f"mount -t tmpfs none '{hidden}' && " if hidden else ""
        own = ["unshare", "--uts", "--mount", "sh", "-c", f'hostname {self.name} && {hide}exec "$@"', "sh"]
        timing = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3,join_timeout=60"
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--nnodes", nodes]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{NETWORK}.1:{PORT}", "--rdzv-id", "job"]
        command += ["--rdzv-conf", f"is_host={int(self.number == 1)},{timing}", "--local-addr", self.address]
        command += ["--max-restarts", str(max_restarts), "--monitor-interval", "0.2", "-m", *arguments]
        environment = (
            os.environ
            | self.environment
            | {
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else gloo finds the addresses of the ranks before a restart
            }
        )
        with open(self.log, "ab") as log:
            self.agent = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *own, *command],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def has_ranks(self) -> bool:
        """Whether its torchrun has started what it is to run."""
        assert self.agent is not None
        with suppress(psutil.NoSuchProcess):
            return any(sys.executable in child.cmdline() for child in psutil.Process(self.agent.pid).children())
        return False

    def listener(self) -> socket.socket:
        """A socket that listens on loopback of the host and is served by this process."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = ["ip", "netns", "exec", self.namespace, sys.executable, "-c", _LISTEN]
            subprocess.run(command, stdin=theirs, check=True, timeout=20)
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        return socket.socket(fileno=descriptors[0])

    def cut_off(self) -> None:
        """Let the host be gone at once, with all that runs on it."""
        for pid in _ip("netns", "pids", self.namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if self.agent is not None:
            self.agent.wait()

    def ended(self, deadline: float) -> int:
        """The exit status of its torchrun."""
        assert self.agent is not None
        wait_for(lambda: self.agent is not None and self.agent.poll() is not None, deadline, [self])
        return self.agent.returncode


def wait_for(holds: Callable[[], bool], deadline: float, hosts: list[Host]) -> None:
    """Raises TimeoutError with what the hosts said when something does not come to hold by `deadline` (monotonic seconds)."""
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("\n".join(f"{host.name}:\n{host.log.read_text()[-6000:]}" for host in hosts))
        time.sleep(0.05)


@contextmanager
def hosts(folder: Path) -> Iterator[list[Host]]:
    """Two hosts that see each other and all folders of this machine."""
    names = [f"tokentar-{os.getpid()}-{number}" for number in (1, 2)]
    made = [Host(f"node-{n}", name, n, folder / f"node-{n}.log") for n, name in enumerate(names, 1)]
    for host in made:
        host.log.touch()
    try:
        _connect(made)
        yield made
    finally:
        for host in made:
            with suppress(Unavailable):
                host.cut_off()
                _ip("netns", "del", host.namespace)


def _connect(made: list[Host]) -> None:
    """A cable between them, as eth0 of each."""
    for host in made:
        _ip("netns", "add", host.namespace)
    first, second = (host.namespace for host in made)
    _ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
    for host in made:
        _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", host.namespace, "link", "set", device, "up")


def _ip(*arguments: str) -> str:
    try:
        return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=10).stdout
    except FileNotFoundError:
        raise Unavailable("`ip` is not installed") from None
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"ip {' '.join(arguments)}: {error.stderr.strip()}") from None
