"""Tune settings on validation samples: a search space, trials with pruning, the best experiment."""
