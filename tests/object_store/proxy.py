"""A TCP proxy before a server that breaks connections on purpose.

    with FaultProxy(server.address) as proxy:
        proxy.plan(Fault(match="train-000003", cut_at=1000, times=2))
        … a client of proxy.url …
        proxy.requests, proxy.fired

A fault acts on requests whose first line holds its `match`. Signatures stay right: the Host header passes through.
"""

import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass
from types import TracebackType

_BLOCK = 65536


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong, and how often. Bytes of a response are counted with its headers, or without."""

    match: str = ""  # acts on requests whose first line holds this
    times: int | None = 1  # how many requests meet it; None: all
    cut_at: int | None = None  # close the connection after so many bytes of the response,
    cut_upload_at: int | None = None  # or of the request
    stall: bool = False  # instead of closing it: keep it open and say nothing more
    flip_at: int | None = None  # flip a bit of this byte of the response
    in_body: bool = False  # bytes of the response are counted from behind its headers
    rate: float | None = None  # bytes a second of the response
    reply: bytes | None = None  # answer this instead


def response(status: str, body: bytes = b"", kind: str = "application/xml") -> bytes:
    """An HTTP response that closes the connection."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


SLOW_DOWN = response(
    "503 Slow Down", b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
)
HTML_PAGE = response("200 OK", b"<html><body>Please log in to this network.</body></html>", "text/html")
NO_SUCH_KEY = response("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>")


class FaultProxy:
    """Passes requests on to `target` and breaks those that the plan says."""

    def __init__(self, target: tuple[str, int], listener: socket.socket | None = None) -> None:
        """listener: where it is to be reached, if not on a port of this machine's loopback."""
        self.target = target
        self.requests: list[str] = []  # first lines, since the last plan
        self.fired = 0
        self.closing = threading.Event()
        self._fault: Fault | None = None
        self._lock = threading.Lock()
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Its endpoint."""
        return "http://{}:{}".format(*self._listener.getsockname())

    def plan(self, fault: Fault | None) -> None:
        """What goes wrong from now on; None: nothing."""
        with self._lock:
            self._fault, self.requests, self.fired = fault, [], 0

    def meet(self, line: str) -> Fault | None:
        """Note a request; the fault that it meets."""
        with self._lock:
            self.requests.append(line)
            fault = self._fault
            if fault is None or fault.match not in line or (fault.times is not None and self.fired >= fault.times):
                return None
            self.fired += 1
            return fault

    def gets(self, name: str = ".tar") -> list[str]:
        """The names of the objects that were asked for, of those with `name` in them."""
        paths = [line.split()[1].split("?")[0] for line in self.requests if line.startswith("GET")]
        return [path.rpartition("/")[2] for path in paths if name in path]

    def __enter__(self) -> "FaultProxy":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                with socket.create_connection(self.target, 10) as server:
                    _Connection(self, client, server).pump()
            except OSError:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not an end


class _Connection:
    """One connection: requests come one after the other, each after the answer to the one before."""

    def __init__(self, proxy: FaultProxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy, self.client, self.server = proxy, client, server
        self.fault: Fault | None = None
        self.up = self.down = 0  # bytes of the request in hand and of its answer
        self.head = 0  # bytes of the headers of that answer, which come in one piece
        self.answered = True

    def pump(self) -> None:
        """Until one side ends, or a fault ends it."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.client, selectors.EVENT_READ, self._upward)
            selector.register(self.server, selectors.EVENT_READ, self._downward)
            while not self.proxy.closing.is_set():
                for key, _ in selector.select(0.2):
                    data = key.fileobj.recv(_BLOCK)  # type: ignore[union-attr]
                    if not data or not key.data(data):
                        return

    def _upward(self, data: bytes) -> bool:
        if self.answered:
            self.fault = self.proxy.meet(data.split(b"\r\n")[0].decode(errors="replace"))
            self.up, self.answered, self.down = 0, False, 0
            if self.fault and self.fault.reply:
                self._swallow(data)
                self.client.sendall(self.fault.reply)
                return False
        if self.fault and self.fault.cut_upload_at is not None and self.up + len(data) >= self.fault.cut_upload_at:
            self.server.sendall(data[: self.fault.cut_upload_at - self.up])
            return self._end()
        self.up += len(data)
        self.server.sendall(data)
        return True

    def _swallow(self, data: bytes) -> None:
        """Read a request to its end, so that the answer is not lost to a reset."""
        head, _, body = data.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        left = int(fields.get(b"content-length", 0)) - len(body)
        while left > 0 and (more := self.client.recv(_BLOCK)):
            left -= len(more)

    def _downward(self, data: bytes) -> bool:
        if not data.startswith(b"HTTP/1.1 100 "):  # which is no answer yet
            self.answered = True
        fault = self.fault
        if self.down == 0:
            self.head = data.find(b"\r\n\r\n") + 4
        if fault and fault.flip_at is not None and 0 <= (place := self._place(fault.flip_at)) < len(data):
            data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        if fault and fault.cut_at is not None and self._place(fault.cut_at) <= len(data):
            self.client.sendall(data[: self._place(fault.cut_at)])
            return self._end()
        if fault and fault.rate:
            time.sleep(len(data) / fault.rate)
        self.down += len(data)
        self.client.sendall(data)
        return True

    def _place(self, byte: int) -> int:
        """Where a byte of the response that the fault names lies in what comes now."""
        return byte - self.down + (self.head if self.fault and self.fault.in_body else 0)

    def _end(self) -> bool:
        """Stall, if the fault says so, until the client gives up; then close."""
        while self.fault and self.fault.stall and not self.proxy.closing.is_set():
            self.client.settimeout(0.2)
            try:
                if not self.client.recv(_BLOCK):
                    break
            except TimeoutError:
                continue
        return False
