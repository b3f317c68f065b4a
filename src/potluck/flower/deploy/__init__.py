"""Flower's processes around the apps: a server, its nodes, and their certificates and keys."""
