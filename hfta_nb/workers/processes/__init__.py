"""What all workers have in common: one protocol, processes that speak it, pickling of users' code, and threads."""
