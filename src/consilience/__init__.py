"""Learn together without sharing data or models."""
