"""Pure tensor functions, for one learner or for many under `vmap`."""
