"""The command `consilience`: one file for each group of commands."""
