"""The stack engine: all learners of a cohort in one step, under `vmap` and CUDA graphs."""
