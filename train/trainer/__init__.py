"""Training with transformers.Trainer: data, checkpoints, exact evaluation, checks before step 1."""
