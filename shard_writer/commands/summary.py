"""The lines that end a writing."""

from tokentar.shard_writer.format.manifest import Manifest


def summary(manifest: Manifest, seconds: float | None) -> str:
    """What a set holds and how fast it was written, in a few lines; seconds: None where there was nothing to do."""
    lines = []
    for split, totals in manifest.info.splits.items():
        shards = manifest.split(split).shards
        lines.append(
            f"{split}: {totals.documents:,} documents, {totals.tokens:,} tokens = {totals.sequences:,} sequences × "
            f"{manifest.info.seq_length} + {totals.tail} left over; {len(shards)} shards, {sum(e.bytes for e in shards) / 1e6:,.1f} MB"
        )
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in manifest.info.skipped.items())
    lines.append(f"skipped: {skipped or 'nothing'}")
    speed = f"done in {seconds:.1f} s, {manifest.info.totals.tokens / seconds:,.0f} tokens/s" if seconds else ""
    lines.append(f"{manifest.root}: {speed or 'complete already, nothing to write'}")
    return "\n".join(lines)
