"""The engine of a cluster: learners' states are on several machines, each with a loop or stack engine of its own."""
