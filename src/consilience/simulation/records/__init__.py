"""What a run leaves behind: history, run folder, checkpoints, provenance."""
