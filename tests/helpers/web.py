"""A plain web server on loopback: it answers GET and HEAD, 501 to all else, and notes what it was asked for."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(SimpleHTTPRequestHandler):
    """Serves files of a folder; anything but GET and HEAD gets 501 from the base class."""

    server: "Web"

    def send_head(self) -> Any:
        """Find the file, unless the query is not the right signature of this method."""
        self.server.requests.append(f"{self.command} {self.path}")
        if self.server.signature and self.path.partition("?")[2] not in self.server.accepted(self.command):
            self.send_error(403)
            return None
        return super().send_head()

    def send_error(self, code: int, *arguments: Any, **settings: Any) -> None:
        """Note requests that are not known, too."""
        if code == 501:
            self.server.requests.append(f"{self.command} {self.path}")
        super().send_error(code, *arguments, **settings)

    def log_message(self, *_: Any) -> None:
        """Says nothing of what it serves."""


class Web(ThreadingHTTPServer):
    """Serves `folder`; where `signature` is given, to those alone that have it as the query of a GET."""

    def __init__(self, folder: Path, signature: str, signs_head: bool) -> None:
        self.signature, self.signs_head = signature, signs_head
        self.requests: list[str] = []
        super().__init__(
            ("127.0.0.1", 0),
            lambda *arguments: Handler(*arguments, directory=str(folder)),  # type: ignore[arg-type]
        )

    def accepted(self, method: str) -> list[str]:
        """The queries that are let through."""
        return [self.signature] if method == "GET" or self.signs_head else []

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def web_server(folder: Path, signature: str = "", *, signs_head: bool = True) -> Iterator[Web]:
    """A server that ends with the body."""
    with Web(folder, signature, signs_head) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield web
        finally:
            web.shutdown()
            thread.join()
