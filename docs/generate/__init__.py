"""Generate documentation from code and results: reference pages, blocks of method pages, pictures."""
