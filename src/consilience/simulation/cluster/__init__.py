"""Many machines: a Ray cluster, what it has, and runs as tasks on it."""
