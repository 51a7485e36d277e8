"""From a set to batches: which shards, opened ahead of need, their rows in the order of reading, joined into batches."""
