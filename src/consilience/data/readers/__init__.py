"""Readers of data files, one file for each format. NumPy only: nothing here imports torch."""
