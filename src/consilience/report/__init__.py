"""Reports: pages about runs, and trackers that show curves while a run is under way."""
