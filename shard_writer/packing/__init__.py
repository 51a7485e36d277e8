"""Which tokens go where: packing, shards and random order, as functions of numbers and arrays. No files."""
