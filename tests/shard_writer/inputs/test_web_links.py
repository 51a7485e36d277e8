"""Files of a plain web server: one is read by GET and HEAD alone, and the query of a signed link is seen by nobody else."""

import json
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.tokenizers import byte_tokenizer
from tests.helpers.web import web_server
from tests.helpers.written import contents, jsonl, texts_of
from tokentar import InputError, Manifest, write_shards
from tokentar.__main__ import main
from tokentar.shard_writer.errors import SettingError, StoreError
from tokentar.shard_writer.inputs.planning import plan_files

SECRET = "X-Amz-Signature=sEcReT%2Fabc&X-Amz-Expires=9"
TEXTS = [f"document {i}" for i in range(20)]
ONE_EACH: dict[str, Any] = {"seq_length": 1, "num_shards": 1, "workers": 0, "shuffle": False}


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A folder with a file of each kind."""
    folder = tmp_path / "served"
    (folder / "a folder").mkdir(parents=True)
    jsonl(folder / "a.jsonl", TEXTS)
    pq.write_table(pa.table({"text": TEXTS}), folder / "one.parquet")
    jsonl(folder / "a folder" / "é 100%.jsonl", TEXTS)
    return folder


def write(t0: Any, source: Any, output: Path, **settings: Any) -> Manifest:
    return write_shards(input=source, tokenizer=t0, output=output, **ONE_EACH | settings)


@pytest.mark.parametrize("signs_head", [True, False])
@pytest.mark.parametrize("name", ["a.jsonl", "one.parquet", "a%20folder/%C3%A9%20100%25.jsonl"])
def test_a_signed_link_is_read_by_get_and_head_of_this_file_alone(
    name: str, signs_head: bool, served: Path, t0: Any, tmp_path: Path
) -> None:
    with web_server(served, SECRET, signs_head=signs_head) as web:
        manifest = write(t0, f"{web.url}/{name}?{SECRET}", tmp_path / "out")
        assert {request.split()[0] for request in web.requests} == {"GET", "HEAD"}
        assert {request.split()[1] for request in web.requests} == {f"/{name}?{SECRET}"}
    assert texts_of(manifest) == TEXTS


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_no_file_and_no_line_holds_the_query(
    workers: int,
    served: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tokentar.shard_writer.storage.files.remove", lambda path: None)  # the spool stays to be seen
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    with web_server(served, SECRET) as web:
        flags = ["--input", f"{web.url}/a.jsonl?{SECRET}", "--tokenizer", str(tmp_path / "tokenizer")]
        flags += ["--seq_length", "8", "--workers", str(workers)]
        with caplog.at_level(1):
            assert main(["write", *flags, "--output", str(tmp_path / "out")]) == 0
        sources = pq.read_table(tmp_path / "out" / "train-000000.docs.parquet")["source"].to_pylist()
        assert set(sources) == {f"{web.url}/a.jsonl"}
    info = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert info["source"]["input"] == [f"{web.url}/a.jsonl"]
    assert "out/.spool/plan.json" in {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    seen = capfd.readouterr()
    for text in (seen.out, seen.err, *caplog.messages, *map(repr, contents(tmp_path).values())):
        assert "sEcReT" not in text


def failure(source: str, t0: Any, output: Path, error: type[Exception], **settings: Any) -> str:
    """The whole traceback of a writing that fails."""
    with pytest.raises(error) as caught:
        write(t0, source, output, **settings)
    assert not output.exists()
    return "".join(traceback.format_exception(caught.value))


def test_no_error_shows_the_query_and_none_is_waited_for(served: Path, t0: Any, tmp_path: Path) -> None:
    (served / "bad.jsonl").write_text('{"text": "fine"}\n{"text": 5}\n')
    (served / "bad.parquet").write_text("PAR1 no")
    with web_server(served, SECRET) as web:
        cases: list[tuple[str, type[Exception], str]] = [
            (
                f"{web.url}/a.jsonl?{SECRET}x",
                StoreError,
                "/a.jsonl: access refused: 403 Forbidden; is it public, or has",
            ),
            (f"{web.url}/none.jsonl?{SECRET}", InputError, "none.jsonl' names no object"),
            (f"{web.url}/bad.jsonl?{SECRET}", InputError, "/bad.jsonl:2: text wanted, found int 5"),
            (f"{web.url}/bad.parquet?{SECRET}", InputError, "/bad.parquet: cannot be read as Parquet"),
            (f"http://me:{SECRET}@127.0.0.1/x?{SECRET}", SettingError, "credentials within a URL"),
            (f"http://?{SECRET}", SettingError, "names no bucket"),
        ]
        for source, error, message in cases:
            text = failure(source, t0, tmp_path / "out", error)
            assert message in text
            assert "sEcReT" not in text
        assert len(web.requests) < 20  # 9 attempts at one of them would be more
        text = failure(f"{web.url}/a.jsonl?{SECRET}", t0, tmp_path / "out", InputError, input_format="dataset")
        assert "sEcReT" not in text


def test_a_server_without_listing_is_asked_once_for_what_it_does_not_list(
    served: Path, t0: Any, tmp_path: Path
) -> None:
    with web_server(served) as web:
        for name in ("", "none.jsonl", "*.jsonl"):
            web.requests.clear()
            text = failure(f"{web.url}/{name}", t0, tmp_path / "out", StoreError)
            assert "501 Not Implemented; where a web server lists no folders, name each file by its own URL" in text
            assert [request for request in web.requests if "PROPFIND" in request] == web.requests[-1:]
        assert texts_of(write(t0, f"{web.url}/a.jsonl", tmp_path / "out")) == TEXTS


def test_a_signed_file_that_changes_after_it_was_planned_ends_the_run(served: Path) -> None:
    how: dict[str, Any] = {"text_column": "text", "input_format": "auto", "dataset_config": None, "dataset_split": ""}
    with web_server(served, SECRET) as web:
        source = plan_files([f"{web.url}/a.jsonl?{SECRET}"], **how)
        source.refuse_changes()
        (served / "a.jsonl").write_text("{}")
        with pytest.raises(InputError, match=rf"{web.url}/a\.jsonl: changed while it was read"):
            source.refuse_changes()
