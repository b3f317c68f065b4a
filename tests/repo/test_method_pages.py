"""Method pages have one form and match the repository's code, options, figures and results."""

import inspect
import re
from pathlib import Path

import pytest

import potluck.kit
from generate import figures, followed, methods
from generate.picture import picture
from potluck.core.settings import settings_of
from potluck.methods import METHODS, method_class
from potluck.recipes.points import read_points
from potluck.recipes.recipe import find_recipe, recipe_names
from potluck.suites.store import Results
from tests.support.suites import make_row

ROOT = Path(__file__).parents[2]
pages = pytest.mark.parametrize("name", METHODS)


def _page(name: str) -> str:
    page = ROOT / "docs" / "methods" / f"{name}.md"
    assert page.exists(), f"write docs/methods/{name}.md (CONTRIBUTING.md, Add a method)"
    return page.read_text()


def _section(page: str, heading: str) -> str:
    return page.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


@pages
def test_a_page_has_the_one_form(name: str):
    page = _page(name)
    assert tuple(re.findall(r"^## (.*)$", page, re.MULTILINE)) == methods.HEADINGS
    numbers = re.findall(r"^(\d+)\. ", _section(page, "Differences from the paper"), re.MULTILINE)
    assert numbers == [str(place) for place in range(1, len(numbers) + 1)] != []
    assert f"potluck run {name}" in _section(page, "Command")
    (tests,) = re.findall(r"`(tests/methods/\w+\.py)`", _section(page, "What is tested"))
    assert (ROOT / tests).exists()


@pages
def test_page_agrees_with_code_and_results(name: str):
    assert methods.update_page(name, _page(name)) == _page(name), (
        "run make pages, or PYTHONPATH=src:docs python -m generate"
    )
    assert (ROOT / "docs" / "figures" / "methods" / f"{name}.svg").read_text() == picture(name)


@pages
def test_the_code_beside_an_equation_is_in_the_methods_file(name: str):
    bases = [cls for cls in method_class(name).__mro__ if cls.__module__.startswith("potluck.methods")]
    files = {inspect.getsourcefile(cls) for cls in bases} | set(
        Path(potluck.kit.__file__).parent.glob("*.py")
    )
    source = _plain("\n".join(Path(str(file)).read_text() for file in files))
    shown = re.findall(r"\| `(.*)` \|$", _section(_page(name), "Equations and code"), re.MULTILINE)
    assert shown
    for line in shown:
        assert _plain(line.replace("\\|", "|")) in source, f"{line} is not in {name}'s code"


def _plain(text: str) -> str:
    """Code without its line breaks and trailing commas, which the formatter moves."""
    text = re.sub(r"\s+", " ", text)
    return re.sub(r",? ([)\]}])", r"\1", re.sub(r"([(\[{]) ", r"\1", text))


@pages
def test_options_have_meanings_and_sources_of_defaults(name: str):
    assert all(each.meaning for each in settings_of(method_class(name)))
    missing = [option for option, origin in methods.origins(_page(name)).items() if not origin]
    assert not missing, (
        f"{name}.md: say in the last column of Options where these defaults come from: {missing}"
    )


def test_an_options_origin_survives_and_a_new_default_is_shown():
    before = "<!-- options: made by make pages -->\n| `server_lr` | x | `7` | y | a paper \\| a page |\n<!-- end -->"
    after = methods.options("fedgh", methods.origins(before))
    assert (
        "| `server_lr` | number, > 0 | `0.01` | step η_θ of the head on a class mean | a paper \\| a page |"
        in after
    )


def test_measured_numbers_are_means_over_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Differences 10, 20, 10, 20, 15: mean 15, standard deviation 5, and 2.776 · 5 / √5 = 6.2 around it."""
    results = Results(tmp_path / "results", "cpu")
    for method, values in {
        "standalone": (0.4, 0.5, 0.4, 0.5, 0.45),
        "fedgh": (0.5, 0.7, 0.5, 0.7, 0.6),
    }.items():
        for seed, value in enumerate(values):
            row = make_row("digits-labels", method, seed, value, floats_up=494.0, floats_down=650.0)
            results.add(row, {"best_clients": []})
    monkeypatch.setattr(methods, "ROOT", tmp_path)
    line = "| Digits, label skew | 60.0 ± 10.0 | +15.0 [+8.8, +21.2] | ahead | 5 | 1,144 |"
    assert line in methods.measured("fedgh")
    assert "Not measured yet" in methods.measured("fedproto")


@pytest.mark.parametrize("name", sorted(set().union(*figures.SHOWN.values())))
def test_a_figure_of_a_paper_is_drawn_from_its_stored_points(name: str):
    recipe, points = find_recipe(name), read_points(figures.STORED / f"{name}.csv")
    assert recipe.figure is not None
    assert {point.panel for point in points} <= set(recipe.figure.panels)
    drawing = (figures.DRAWN / f"{name}.svg").read_text()
    assert all(point.panel in drawing for point in points)
    assert (figures.STORED / f"{name}.csv").stat().st_size < 50_000
    pages_with_it = [method for method, names in figures.SHOWN.items() if name in names]
    for method in pages_with_it:
        section = _section(_page(method), "Measured")
        assert f"../figures/papers/{name}.svg" in section
        assert f"potluck reproduce {name} " in section


def test_a_baselines_page_has_the_options_of_every_recipe_that_runs_it():
    used = {row.method for name in recipe_names() for row in find_recipe(name).rows.values()}
    assert set(followed.BASELINES) == {*used} - {"fedhe", "pfedafm", "fedin", "fedl2g-l", "fedl2g-f"}
    lines = followed.recipes("fedkd").splitlines()
    assert "| `fedgh-table1`, `fedgh-table3` | `floor=0.0` |" in lines
    assert "htfllib_compat=true, training.clip_norm=10.0" in followed.recipes("fml")
    assert "InCo-Aggregation" in followed.recipes("moon")
    assert "`fedgh-" not in followed.recipes("fedgh")  # only where it is a baseline
