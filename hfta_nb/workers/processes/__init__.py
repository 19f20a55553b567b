"""What worker processes have in common: messages over pipes, pickling of users' code, threads, and how they end."""
