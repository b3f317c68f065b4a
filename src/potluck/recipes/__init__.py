"""The papers' tables as TOML, and what it takes to measure them again."""
