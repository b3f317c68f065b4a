"""Choosing settings by validation samples: a space, trials that are compared round by round, the best experiment."""
