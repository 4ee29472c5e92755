"""Two-stage learning (Ma et al. 2020): one file for each table or figure."""
