"""What people type: a module a command, each with `main(prog, argv)` that returns the exit status."""
