"""What another attempt may mend is tried again, what it cannot change is not."""

from typing import Any

import pytest

from tests.helpers.folder_store import HASTY
from tokentar.shard_writer.errors import StoreError
from tokentar.shard_writer.storage.client import is_final, reason
from tokentar.shard_writer.storage.urls import Bucket, Url


class FailingClient:
    """A client whose every request fails in the same way."""

    errors = (RuntimeError,)

    def __init__(self, message: str) -> None:
        self.message, self.requests = message, 0

    def fail(self, *_: Any) -> Any:
        self.requests += 1
        raise RuntimeError(self.message)

    stat = read = put = create = list = delete = abort_uploads = fail


REQUESTS: dict[str, Any] = {
    "stat": lambda url: url.stat(),
    "read": lambda url: url.read_bytes(),
    "list": lambda url: url.files(),
    "put": lambda url: url.put(b""),
    "create": lambda url: url.create(b""),
    "delete": lambda url: url.delete(),
    "checksum": lambda url: url.checksum(),
    "abort": lambda url: url.abort_uploads(),
}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize(
    ("answer", "attempts"),
    [
        ("501 Not Implemented", 1),
        ("405 Method Not Allowed", 1),
        ("410 Gone", 1),
        ("505 Version", 1),
        ("403 Forbidden", 1),
        ("503 Service Unavailable", HASTY.attempts),
        ("500 Internal Server Error", HASTY.attempts),
        ("429 Too Many Requests", HASTY.attempts),
        ("408 Request Timeout", HASTY.attempts),
    ],
)
def test_only_answers_that_may_change_are_asked_for_again(answer: str, attempts: int, request_name: str) -> None:
    client = FailingClient(f"Error performing GET http://host/key?sig=sEcReT in 1ms - status code: {answer}: ")
    bucket = Bucket("s3://bucket", HASTY)
    bucket.__dict__["client"] = client
    with pytest.raises(StoreError, match=answer[:3]) as caught:
        REQUESTS[request_name](Url(bucket, "key"))
    assert client.requests == attempts
    assert "sEcReT" not in str(caught.value)


def test_the_answer_of_another_client_is_known_by_its_status() -> None:
    class HubError(Exception):
        response: Any = type("Response", (), {"status_code": 501})

    assert is_final(HubError("Not Implemented"))
    assert not is_final(Exception("connection reset"))


def test_a_bucket_shows_no_query() -> None:
    url = Url(Bucket("https://host", HASTY, "sig=sEcReT"), "a.jsonl")
    assert "sEcReT" not in f"{url} {url!r} {url / 'b'!r} {url.bucket!r}"
    assert reason(Exception("HTTP error: error sending request for url (http://host/a?sig=sEcReT)")) == (
        "HTTP error: error sending request for url (http://host/a"
    )
