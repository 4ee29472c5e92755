"""One data owner: its model, its state, and its part of a round."""
