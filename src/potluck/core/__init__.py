"""The nouns of federated learning as Potluck sees them. Imports torch and the standard library only."""
