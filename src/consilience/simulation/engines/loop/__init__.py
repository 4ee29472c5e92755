"""The loop engine: one learner after the other, in worker processes."""
