"""show: what stands in the rows of a set, padding told from the ends of documents."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.written import FEW_SHARDS
from tokentar import write_shards
from tokentar.shard_writer.maintenance.show import rows_as_text


@pytest.mark.parametrize(
    ("texts", "seq_length", "first_lines"),
    [
        (["d", "g"], 16, ["16 tokens, 2 document ends, 12 padding"]),  # [103, 2, 106, 2] + 12 × padding
        (["d", "g"], 4, ["4 tokens, 2 document ends, 0 padding"]),
        (["abcdef"], 4, ["4 tokens, 0 document ends, 0 padding", "4 tokens, 1 document ends, 1 padding"]),
    ],
)
def test_padding_is_counted_apart_from_the_ends_of_documents(
    texts: list[str], seq_length: int, first_lines: list[str], t0: Any, tmp_path: Path
) -> None:
    rows = [{"text": text} for text in texts]
    manifest = write_shards(
        input=rows, tokenizer=t0, output=tmp_path / "out", seq_length=seq_length, packing="best_fit", **FEW_SHARDS
    )
    printed = list(rows_as_text(manifest, t0, 9))
    assert [line.split(" · ")[2] for line in printed[::2]] == first_lines
    assert "".join(printed[1::2]).replace("\n⏎ end of document ⏎\n", "") == "".join(texts)
