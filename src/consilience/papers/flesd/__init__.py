"""FLESD (Shi et al. 2021): one file for each table or figure."""
