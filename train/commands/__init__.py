"""What people type to train, and to see what a training job would do."""
