"""One round of a simulation, in the order in which data flows."""
