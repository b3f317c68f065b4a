"""Tables as spreadsheets write them: missing values, other separators and encodings, short rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from potluck.core.errors import PotluckError
from potluck.data import load_data
from potluck.data.raw import describe_raw, read_raw
from potluck.experiment import parse_experiment
from potluck.federation.population import experiment_data

ROWS = [("20", "cook"), ("NA", "guard"), ("40", "?"), ("", "cook")]


def write(
    path: Path, rows: list[tuple[str, str]] = ROWS, separator: str = ",", encoding: str = "utf-8"
) -> str:
    lines = [("age", "job", "label"), *((*row, "ab"[place % 2]) for place, row in enumerate(rows))]
    path.write_bytes("\n".join(separator.join(line) for line in lines).encode(encoding))
    return f"csv:{path}"


def test_missing_values_are_refused_with_their_number_and_place(tmp_path: Path) -> None:
    name = write(tmp_path / "t.csv")
    with pytest.raises(
        PotluckError, match=r"'age' .* is 'NA' in row 3, a missing value \(2 of 4 rows\); .*=impute"
    ):
        load_data(name, tmp_path)


def test_imputed_numbers_get_the_mean_and_words_the_most_frequent(tmp_path: Path) -> None:
    values = {"data": {"name": write(tmp_path / "t.csv"), "root": str(tmp_path), "missing": "impute"}}
    data = experiment_data(parse_experiment(values))
    assert data.x.tolist() == [[20, 1, 0], [30, 0, 1], [40, 1, 0], [30, 1, 0]]
    raw = read_raw(json.loads(json.dumps(describe_raw(data.raw))))
    assert raw == data.raw
    assert raw is not None
    assert raw.encode([{"age": "", "job": "NA"}]).tolist() == [[30, 1, 0]]


def test_missing_labels_are_never_imputed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,label\n1,a\n2,NA\n")
    with pytest.raises(
        PotluckError, match=r"Column 'label' .* is 'NA' in row 3, .* fill it in, or drop these rows"
    ):
        load_data(f"csv:{tmp_path}/t.csv", tmp_path, missing="impute")


def test_a_word_among_numbers_is_no_column_of_words(tmp_path: Path) -> None:
    name = write(tmp_path / "t.csv", [("20", "x"), ("old", "y"), ("40", "x")])
    with pytest.raises(PotluckError, match=r"'age' .* has numbers in most rows and 'old' in row 3"):
        load_data(name, tmp_path)


def test_an_option_of_tables_has_no_effect_elsewhere() -> None:
    with pytest.raises(PotluckError, match="Data 'digits' take no missing"):
        load_data("digits", missing="impute")
    assert len(load_data("digits", missing="refuse"))


@pytest.mark.parametrize(("separator", "encoding"), [(";", "utf-8"), ("\t", "utf-16"), (";", "utf-8-sig")])
def test_separator_and_encoding_are_found(tmp_path: Path, separator: str, encoding: str) -> None:
    rows = [("20,5", "köchin"), ("40", "guard")]
    data = load_data(write(tmp_path / "t.csv", rows, separator, encoding), tmp_path)
    assert data.x.tolist() == [[20.5, 0, 1], [40, 1, 0]]


def test_another_encoding_is_named(tmp_path: Path) -> None:
    name = write(tmp_path / "t.csv", [("20", "köchin"), ("40", "guard")], ";", "latin-1")
    with pytest.raises(
        PotluckError, match=r"is not encoded in UTF-8 \(byte 0xf6 in line 2\); save it as UTF-8"
    ):
        load_data(name, tmp_path)


def test_a_short_row_is_named_and_no_message_advises_to_delete(tmp_path: Path) -> None:
    name = write(tmp_path / "t.csv", [("20", "x"), ("4;5", "y")], ";")
    with pytest.raises(
        PotluckError, match=r"row 3 has 4 values where the header has 3 \(separated by semicolons\)"
    ) as warning:
        load_data(name, tmp_path)
    assert "delete" not in str(warning.value)
    (tmp_path / "d" / "a").mkdir(parents=True)
    (tmp_path / "d" / "a" / "1.png").write_bytes(b"no picture")
    with pytest.raises(PotluckError, match="damaged or incomplete") as warning:
        load_data(f"folder:{tmp_path}/d", tmp_path)
    assert "delete" not in str(warning.value)
