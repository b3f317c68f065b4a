"""Tasks × methods × seeds, every method tuned with the same small budget; results as data, pages made from them."""
