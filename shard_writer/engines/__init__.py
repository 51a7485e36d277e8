"""Where the steps of a writing run: processes of this machine, or tasks of a Ray cluster."""
