"""Joining a federation: from one's own training loop, or with none of one's own."""
