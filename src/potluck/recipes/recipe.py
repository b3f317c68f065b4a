"""A paper's table as data: how each of its cells was made, and the number printed there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from potluck.core.errors import PotluckError, unknown
from potluck.core.files import packaged_names, parse_toml, read_text
from potluck.recipes.content import Values, inherit, merged, with_defaults
from potluck.recipes.figure import Figure, Panel
from potluck.recipes.measures import COUNTED, TO_TARGET, MeasureName

NO_CELL = "n/a"
"""What stands in a recipe where the paper's table has no such cell: nothing is run for it."""

UNPRINTED = "?"
"""What stands where a run is of interest and the paper prints no number for it."""

SCALE_TABLES = ("small", "full")
"""Tables of a recipe, a setting or a row that hold what it changes at the scale of that name."""

_PRINTED = re.compile(r"-|n/a|\?|\d+(\.\d+)?(±\d*\.?\d+)?")


class Column(BaseModel, extra="forbid", frozen=True):
    """What one column of the table measures, and on which setting."""

    setting: str
    measure: MeasureName
    title: str = ""
    target: float | None = Field(None, gt=0, le=1)
    small_target: float | None = Field(None, gt=0, le=1)
    """The target at the small and the smoke scale, whose runs may never reach the paper's."""
    field: Literal["accuracy", "accuracy_micro"] = "accuracy"

    @model_validator(mode="after")
    def _target_where_needed(self) -> Column:
        if (self.measure in TO_TARGET) != (self.target is not None):
            raise ValueError(f"measures {', '.join(TO_TARGET)} have a target, and no others do")
        if self.small_target is not None and self.target is None:
            raise ValueError("small_target takes a target")
        return self

    def target_at(self, scale: str) -> float | None:
        """Return the target accuracy at a scale."""
        return (self.small_target or self.target) if scale in ("small", "smoke") else self.target


class Row(BaseModel, extra="forbid", frozen=True):
    """One method of the table, its options, and its printed numbers in the order of the columns."""

    method: str
    options: Values = {}
    settings: Values = {}
    small: Values = {}
    full: Values = {}
    copies: int = Field(1, ge=1)
    """Models of its size that a client keeps, where a column counts memory."""
    paper: tuple[str, ...]

    @field_validator("paper", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return value.split() if isinstance(value, str) else value

    @field_validator("paper")
    @classmethod
    def _numbers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for cell in value:
            if not _PRINTED.fullmatch(cell):
                raise ValueError(
                    f"{cell!r} is none of 97.6, 87.3±.2, - (printed dash), ? (run, not printed) and n/a (no such cell)"
                )
        return value


class Recipe(BaseModel, extra="forbid", frozen=True):
    """A table: settings that all cells share, groups of settings, columns and rows; and the figure made of its runs."""

    name: str
    title: str
    paper: str
    notes: tuple[str, ...] = ()
    counted: bool = False
    """Whether its cells follow from shapes alone: two rounds on blank samples at every scale, and no data."""
    base: Values = {}
    small: Values = {}
    full: Values = {}
    settings: dict[str, Values] = Field(min_length=1)
    columns: dict[str, Column] = Field(min_length=1)
    rows: dict[str, Row] = Field(min_length=1)
    figure: Figure | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, content: Any) -> Any:
        return with_defaults(content) if isinstance(content, dict) else content

    @model_validator(mode="after")
    def _fits_together(self) -> Recipe:
        for name, column in self.columns.items():
            if self.counted and column.measure not in COUNTED:
                raise ValueError(f"column {name!r} of a counted recipe measures none of {', '.join(COUNTED)}")
            if column.measure == "mflops-per-sample" and not self.counted:
                raise ValueError(f"column {name!r} measures mflops-per-sample, which takes counted = true")
            if column.setting not in self.settings:
                raise ValueError(f"column {name!r} is of the setting {column.setting!r}, which is not there")
        for label, row in self.rows.items():
            if len(row.paper) != len(self.columns):
                raise ValueError(
                    f"row {label!r} has {len(row.paper)} numbers for {len(self.columns)} columns"
                )
        for kind, names in (("rows", self.rows), ("settings", self.settings)):
            if len({slug(name) for name in names}) < len(names):
                raise ValueError(f"two {kind} have names that give the same folder")
        mistake = self.figure and self.figure.mistake(self.settings, self.columns, self.rows)
        if mistake:
            raise ValueError(mistake)
        return self

    def printed(self, row: str, column: str) -> str:
        """Return what the paper prints in a cell."""
        return self.rows[row].paper[list(self.columns).index(column)]

    def heading(self, column: str) -> str:
        """Return the column as a reader knows it."""
        return self.columns[column].title or column

    def runs(self, row: str, setting: str, columns: Iterable[str]) -> bool:
        """Return whether some of these columns measures this row on this setting."""
        return any(
            self.columns[name].setting == setting and self.printed(row, name) != NO_CELL for name in columns
        )

    def values(self, row: str, setting: str) -> Values:
        """Return the experiment behind a row's cells on a setting, as the paper has it."""
        entry = self.rows[row]
        group = {
            section: values
            for section, values in self.settings[setting].items()
            if section not in SCALE_TABLES
        }
        return merged(self.base, group, {"method": {"name": entry.method, **entry.options}}, entry.settings)

    def scale_values(self, scale: Literal["small", "full"], row: str, setting: str) -> Values:
        """Return what the recipe itself changes at a scale: for all cells, for the setting, for the row."""
        return merged(
            getattr(self, scale), self.settings[setting].get(scale, {}), getattr(self.rows[row], scale)
        )

    @property
    def own_rows(self) -> tuple[str, ...]:
        """The rows of the paper's own method, after which the recipe is named; else the last row."""
        first = self.name.partition("-")[0]
        own = tuple(label for label, row in self.rows.items() if row.method.startswith(first))
        return own or (list(self.rows)[-1],)


def slug(text: str) -> str:
    """Return a name as a folder can have it."""
    return re.sub(r"[^a-z0-9.+]+", "-", text.lower()).strip("-")


def recipe_names() -> list[str]:
    """Return the recipes that come with Potluck."""
    return packaged_names("potluck.recipes")


def find_recipe(name: str) -> Recipe:
    """Return the recipe of this name, or of the file with this path."""
    if name.endswith(".toml"):
        return _read(Path(name), Path(name).stem)
    if name not in recipe_names():
        raise unknown("recipe", name, recipe_names())
    with resources.as_file(resources.files("potluck.recipes") / f"{name}.toml") as file:
        return _read(file, name)


def _content(name: str) -> Values:
    """The content of a recipe that comes with Potluck."""
    if name not in recipe_names():
        raise unknown("recipe in like", name, recipe_names())
    return parse_toml((resources.files("potluck.recipes") / f"{name}.toml").read_text("utf-8"))


def _read(file: Path, name: str) -> Recipe:
    try:
        return Recipe.model_validate({"name": name, **inherit(parse_toml(read_text(file)), _content)})
    except OSError as error:
        raise PotluckError(
            f"Recipe file {str(file)!r} cannot be read ({error.strerror}); check the path."
        ) from None
    except ValidationError as error:
        raise _one_sentence(str(file), error) from None
    except TOMLDecodeError as error:
        raise PotluckError(f"Recipe file {str(file)!r} is not valid TOML: {error}.") from None
    except ValueError as error:
        raise PotluckError(f"Recipe file {str(file)!r}: {error}.") from None


def _one_sentence(file: str, error: ValidationError) -> PotluckError:
    """Return the first thing wrong; a misspelt key before the one that is missing for it."""
    first = min(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
    path = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        parts: dict[str, type[BaseModel]] = {"columns": Column, "rows": Row, "figure": Panel}
        keys = parts.get(path[0], Recipe).model_fields
        return unknown(f"key of recipe file {file!r}", path[-1], keys)
    where = ".".join(path) + ": " if path else ""
    return PotluckError(f"Recipe file {file!r}: {where}{first['msg'].removeprefix('Value error, ')}.")
