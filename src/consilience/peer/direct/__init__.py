"""A federation without a relay: members send each other signed messages, and each aggregates for itself."""
