"""One run: from an experiment to a folder of results; checkpoints, reading, exported models."""
