"""Federated learning where everyone brings their own model."""
