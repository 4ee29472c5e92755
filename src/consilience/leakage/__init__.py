"""What can be learned of raw data from what a run's models make of it."""
