"""Joining a federation: from a training loop of one's own, or with the library's trainer."""
