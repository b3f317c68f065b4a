"""The generators of the documentation, importable as they are when the site is built."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
