"""The branches engine: each learner's own step, as parallel branches of one CUDA graph."""
