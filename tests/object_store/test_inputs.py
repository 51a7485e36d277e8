"""Text in a bucket is an input like text on disk: the same shards, whatever happens on the way (G1, G2)."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.web import web_server
from tests.helpers.written import contents, jsonl
from tests.object_store.proxy import SLOW_DOWN, Fault, FaultProxy
from tests.object_store.server import BUCKET, Server
from tokentar import Access, InputError, Manifest, ShardLoader, write_shards
from tokentar.shard_writer.format.provenance import path_of
from tokentar.shard_writer.inputs.documents import Bad
from tokentar.shard_writer.inputs.planning import plan_files

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
Write = Callable[..., Manifest]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """JSONL, Parquet, a table and texts, in folders."""
    folder = tmp_path / "corpus"
    (folder / "src/deep").mkdir(parents=True)
    for name in ("a", "b"):
        jsonl(folder / f"{name}.jsonl", [f"line {i} of {name}" for i in range(40)])
    pq.write_table(pa.table({"text": [f"row {i}" for i in range(30)]}), folder / "c.parquet", row_group_size=10)
    (folder / "d.csv").write_text("text,number\none,1\ntwo,2\n")
    for name in ("x.py", "deep/y.py", "deep/.hidden.py", "z.txt"):
        (folder / "src" / name).write_text(f"text of {name}\n")
    return folder


@pytest.fixture
def stored(server: Server, there: str, corpus: Path) -> str:
    """The URL of the same in the store, put there past the proxy."""
    server.put_folder(corpus, there.removeprefix(f"s3://{BUCKET}/"))
    return there


@pytest.fixture
def write(t0: Any, tmp_path: Path) -> Write:
    """Writes its input as shards into a folder."""

    def run(source: Any, output: str, **settings: Any) -> Manifest:
        fixed: dict[str, Any] = {"seq_length": 4, "num_shards": 2, "workers": 0, "shuffle": False}
        return write_shards(input=source, tokenizer=t0, output=tmp_path / output, **fixed | settings)

    return run


def shards(manifest: Manifest) -> list[bytes]:
    return [manifest.path(entry).read_bytes() for entry in manifest.shards]


@pytest.mark.parametrize(
    "names",
    [("a.jsonl",), ("*.jsonl",), ("c.parquet",), ("d.csv",), ("src/**/*.py",), ("src",), ("src/", "b.jsonl"), ("",)],
)
def test_objects_become_the_shards_that_files_become(
    write: Write, corpus: Path, stored: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    here = write([str(corpus / name) for name in names], "here")
    there = write([f"{stored}/{name}" for name in names], "there")
    assert shards(there) == shards(here)
    sources = [
        pq.read_table(path_of(manifest.folder, manifest.shards[0].shard))["source"].to_pylist()
        for manifest in (here, there)
    ]
    assert sources[1] == [source.replace(str(corpus), stored) for source in sources[0]]


def test_processes_read_objects_through_faults(write: Write, proxy: FaultProxy, corpus: Path, stored: str) -> None:
    proxy.plan(Fault(match="GET /shards/" + stored.removeprefix(f"s3://{BUCKET}/"), reply=SLOW_DOWN, times=3))
    there = write(f"{stored}/*.jsonl", "there", workers=2, shuffle=True)
    assert proxy.fired == 3
    assert shards(there) == shards(write(str(corpus / "*.jsonl"), "here", shuffle=True))


def test_the_same_objects_give_the_same_set_byte_for_byte(write: Write, stored: str, tmp_path: Path) -> None:
    for output in ("one", "two"):
        write(f"{stored}/*.jsonl", output)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_an_error_names_the_object(write: Write, stored: str, server: Server) -> None:
    key = f"{stored.removeprefix(f's3://{BUCKET}/')}/broken.jsonl"
    server.client().put_object(Bucket=BUCKET, Key=key, Body=b'{"text": "fine"}\n{"text": \n')
    with pytest.raises(InputError, match=re.escape(f"{stored}/broken.jsonl:2")):
        write(f"{stored}/broken.jsonl", "out")
    with pytest.raises(InputError, match=re.escape(f"{stored}/none-*.jsonl' names no object")):
        write(f"{stored}/none-*.jsonl", "out")


def test_an_object_that_changes_after_it_was_listed_ends_the_run(stored: str, server: Server) -> None:
    how: dict[str, Any] = {"text_column": "text", "input_format": "auto", "dataset_config": None, "dataset_split": ""}
    source = plan_files([f"{stored}/a.jsonl"], **how)
    source.refuse_changes()
    key = f"{stored.removeprefix(f's3://{BUCKET}/')}/a.jsonl"
    server.client().put_object(Bucket=BUCKET, Key=key, Body=b"{}")
    with pytest.raises(InputError, match=re.escape(f"{stored}/a.jsonl: changed while it was read")):
        source.refuse_changes()
    (task,) = source.tasks
    with pytest.raises(
        InputError, match=re.escape(f"{stored}/a.jsonl: was listed with ") + r"\d+ bytes: 2 bytes; write again"
    ):
        list(task.reader.read("text", Bad("error")))


def test_inputs_and_sets_are_read_from_a_web_server(write: Write, corpus: Path, tmp_path: Path) -> None:
    here = write(str(corpus / "a.jsonl"), "here")
    with web_server(tmp_path) as web:
        there = write(f"{web.url}/corpus/a.jsonl", "there")
        loader = ShardLoader(f"{web.url}/here", batch_size=2, access=Access(cache_dir=str(tmp_path / "cache")))
        read = [batch["input_ids"].tolist() for batch in loader]
    assert shards(there) == shards(here)
    assert read == [batch["input_ids"].tolist() for batch in ShardLoader(here, batch_size=2)]
