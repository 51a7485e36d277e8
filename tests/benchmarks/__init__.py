"""Side-by-side figures, each against what one would use instead: `python -m tests.benchmarks --help`. No tests."""
