"""Engines: they hold the learners of a simulation and do the work of a round on them."""
