"""The site: every page is in the navigation, every public name is documented, nothing is loaded from elsewhere."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError

from generate import formulas, hook, notebooks, reference, soak, which
from generate.text import find_block
from potluck.methods import METHODS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def places() -> list[str]:
    """Every page that the navigation names, in order."""
    config = load_config(str(ROOT / "mkdocs.yml"))
    return list(_leaves(hook.on_config(config).nav))


def _leaves(entry: object):
    if isinstance(entry, str):
        yield entry
    for each in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from _leaves(each)


def test_every_page_has_one_place_in_the_navigation(places: list[str]):
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    made = {*hook.ROOT_PAGES, *reference.pages(), *notebooks.pages()}
    assert sorted(written - set(places)) == [], "give these pages a place in mkdocs.yml's nav"
    assert sorted(set(places) - written - made) == [], "mkdocs.yml names pages that do not exist"
    assert len(places) == len(set(places))


def test_every_method_has_a_page(places: list[str]):
    assert {f"methods/{name}.md" for name in METHODS} <= set(places)


def test_every_public_name_has_a_docstring():
    assert reference.undocumented() == []


def test_a_name_of_two_packages_is_described_once():
    pages = reference.pages()
    place = "potluck.data.partitions.rules.Partition"
    assert f"::: {place}\n" in pages["reference/api/potluck.md"]
    assert f"[`Partition`][{place}]" in pages["reference/api/potluck.data.md"]
    shown = [line for page in pages.values() for line in page.splitlines() if line.startswith("::: ")]
    assert len(shown) == len(set(shown)) > 100


def test_undocumented_name_is_detected(monkeypatch: pytest.MonkeyPatch):
    class Loud:
        """Says something."""

        def silent(self):
            return 1

    assert list(reference._silent("Loud", Loud)) == ["Loud.silent"]
    monkeypatch.setattr(reference, "undocumented", lambda: ["potluck.Loud.silent"])
    with pytest.raises(PluginError, match=r"potluck\.Loud\.silent"):
        hook.on_files(None, None)


def test_a_page_that_loads_something_from_elsewhere_is_refused(tmp_path: Path):
    page = tmp_path / "page.html"
    page.write_text('<a href="https://example.org">a link may lead away</a><img src="own.png">')
    hook.on_post_build(SimpleNamespace(site_dir=tmp_path))
    page.write_text('<script src="https://example.org/x.js"></script>')
    with pytest.raises(PluginError, match="example.org"):
        hook.on_post_build(SimpleNamespace(site_dir=tmp_path))


def test_the_reference_has_every_setting_with_type_default_and_meaning():
    page = reference.settings()
    assert "| `schedule.rounds` | whole number, ≥ 1 | `20` |" in page
    assert "| `models.precision` | `float32` or `float64` | `float32` |" in page
    assert "| `engine.workers` | whole number, ≥ 0, ≤ 4096 | `0` |" in page
    for line in page.splitlines():
        if line.startswith("| `"):
            assert len(line.split(" | ")) == 5
            assert line.split(" | ")[3].strip()


def test_the_reference_has_every_command_and_flag():
    page = reference.commands()
    for command in (
        "potluck run",
        "potluck compare",
        "potluck node",
        "potluck server",
        "potluck data prepare",
    ):
        assert f"\n## {command}" in page
    assert "| `--resume`" in page


def test_the_reference_has_every_model_with_its_size():
    page = reference.models()
    assert "| 2,621,558 | 500 |" in page.split("`cnn-1`", 1)[1].splitlines()[0]
    assert page.count("\n| `") > 60


def test_the_front_page_is_the_readme_with_the_sites_links():
    text = hook.at_root("[a](docs/tutorial.md) [b](CHANGELOG.md#new) [c](docs/methods)")
    assert text == "[a](tutorial.md) [b](changelog.md#new) [c](reference/methods.md)"


def test_which_method_page_agrees_with_declared_requirements(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(which, "traffic", lambda name: (0, 0))
    page = (ROOT / "docs" / "which-method.md").read_text()
    declared = [line.rsplit(" | ", 2)[0] for line in which.methods().splitlines()]
    shown = [line.rsplit(" | ", 2)[0] for line in (find_block(page, "methods") or "").strip().splitlines()]
    assert shown[2:] == declared[2:], "run make pages, or PYTHONPATH=src:docs python -m generate"


def test_the_soaks_figures_are_those_that_are_stored():
    page = (ROOT / "docs" / "three-machines.md").read_text()
    stored = json.loads(soak.RESULTS.read_text())
    assert page == soak.update_page(page), "run make pages"
    assert stored["rounds"] == stored["rounds asked"]
    assert stored["answers"] + sum(stored["losses on record"].values()) == 3 * stored["rounds"]
    assert sum(stored["faults"].values()) == stored["strikes"]


def test_soak_with_a_hostile_node_accounts_for_every_answer():
    stored = json.loads(soak.TEN.read_text())
    every = stored["nodes"] * stored["rounds"]
    assert stored["answers"] + sum(stored["losses on record"].values()) == every
    assert f"{stored['answers']} of {every} answers came" in soak.with_hostile(stored)


def test_table_of_outages_subtracts_the_undisturbed_run():
    row = {"rounds": 12, "same": 12, "lost": 0, "last round has all": True, "commit": "abc", "load": 0.5}
    stored = {
        "outages": [{**row, "outage": "none", "seconds": 20}, {**row, "outage": "a stop", "seconds": 141}],
        "flwr": "1",
    }
    assert "| a stop | 12 of 12 | 0 | yes | 121 |" in soak.outages(stored)


def test_which_methods_numbers_are_counted():
    page = (ROOT / "docs" / "which-method.md").read_text()
    assert which.traffic("lg-fedavg") == (650, 650)  # a head of 64 features and 10 classes: 64 * 10 + 10
    line = [line for line in page.splitlines() if line.startswith("| [lg-fedavg]")][-1]  # of the table of all
    assert line.endswith("| 650 | 650 |")


def test_formulas_become_mathml_that_needs_no_script():
    page = '<p><span class="arithmatex">\\(a &lt; b_k\\)</span></p><div class="arithmatex">\\[\n\\frac{1}{2}\n\\]</div>'
    shown = formulas.render(page, "page.md")
    assert "arithmatex" not in shown
    assert shown.count("<math") == 2
    assert "<mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn></mrow></mfrac>" in shown
    assert 'display="block"' in shown
    for wrong in ("\\frac{1", "x^", "\\fractoin x"):
        with pytest.raises(PluginError, match="of page.md cannot be read"):
            formulas.render(f'<span class="arithmatex">\\({wrong}\\)</span>', "page.md")


def test_the_page_of_the_five_papers_has_each_with_formula_figure_and_link():
    sections = (ROOT / "docs" / "five-papers.md").read_text().split("\n## ")[1:]
    for section, name in zip(sections, ("fedgh", "fedhe", "pfedafm", "fedin", "fedl2g-l"), strict=False):
        assert "$$" in section
        assert f"](figures/methods/{name}.svg)" in section
        assert f"](methods/{name}.md)" in section
