"""Differential privacy of what is uploaded: how much noise a budget needs, and how much of it is spent."""
