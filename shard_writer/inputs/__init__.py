"""From files, objects in stores and data sets to documents: each format is a reader that yields batches of texts."""
