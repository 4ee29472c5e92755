"""Representation sharing (Berdoz 2022): one file for each table or figure."""
