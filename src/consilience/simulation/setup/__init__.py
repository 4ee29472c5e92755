"""Who takes part in a simulation, with which data, model and role; what cannot work is refused here."""
