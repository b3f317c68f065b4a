"""From an experiment, or a user's own objects, to clients: population, devices, clock, FLOPs."""
