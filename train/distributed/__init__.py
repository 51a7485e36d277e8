"""Which rank and worker this process is, and what ranks tell each other."""
