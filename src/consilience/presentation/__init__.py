"""Presentation of results: tables, charts, images, colors."""
