"""What a set is on disk: shards, manifest.jsonl, dataset.json, provenance and checksums. It knows nothing of how a set is made."""
