"""A machine that brings its own data and model: its file, its part of a federation, its private state."""
