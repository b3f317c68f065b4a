"""The README's commands for an own table, from the file to predictions."""

from __future__ import annotations

import random
import re
import shlex
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_leads_from_a_table_to_predictions(potluck, tmp_path: Path) -> None:
    block = re.search(r"^Your own table.*?```\n(.*?)```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    rng = random.Random(0)
    rows = [(rng.randint(20, 90), rng.choice("ABC")) for _ in range(90)]
    lines = [f"{age},{ward},{'ill' if age > 55 else 'healthy'}" for age, ward in rows]
    (tmp_path / "patients.csv").write_text("\n".join(["age,ward,outcome", *lines]) + "\n")
    printed = []
    for line in block.group(1).splitlines():
        words = shlex.split(line, comments=True)[1:]
        more = ["--rounds", "2", "--engine", "serial"] if words[0] == "run" else []
        code, out, err = potluck(*words, *more)
        assert code == 0, err
        printed.append(out)
    assert len(printed) == 4
    assert all(f"row {number}" in printed[-1] for number in range(1, 91))
    assert re.search(r"\b(ill|healthy)\b\s+\d\.\d{3}", printed[-1])
