"""Settings of a run: typed, checked when made, read from TOML and from options."""
