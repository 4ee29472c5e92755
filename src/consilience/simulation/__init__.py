"""Simulation: many learners on one machine, with the same exchanges and channels as over a network."""
