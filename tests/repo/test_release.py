"""A release: one version, workflows that call make targets, readable files."""

import re
import tomllib
from pathlib import Path

import yaml

import potluck

ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/potluck/__init__.py"
    duplicates = [
        name
        for name in ("mkdocs.yml", "CITATION.cff", "Dockerfile", "Makefile")
        if potluck.__version__ in (ROOT / name).read_text()
    ]
    assert duplicates == []


def test_python_versions_agree_in_classifiers_workflows_and_readme():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    classified = {
        entry.rsplit(" ", 1)[1] for entry in project["classifiers"] if re.search(r"Python :: 3\.\d+$", entry)
    }
    workflows = {
        path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")
    }
    assert classified == set(workflows["release.yml"]["jobs"]["test"]["strategy"]["matrix"]["python"])
    assert workflows["release.yml"]["jobs"]["dist"]["needs"] == "test"
    daily = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    assert set(re.findall(r'python-version: "([\d.]+)"', daily)) == {min(classified)} == {"3.11"}
    assert re.search(
        r"Every change is tested on Python 3\.11; a release on 3\.11, 3\.12 and 3\.13",
        (ROOT / "README.md").read_text(),
    )


def test_pictures_of_the_readme_exist_and_are_small():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert pictures
    assert all(0 < (ROOT / picture).stat().st_size < 300_000 for picture in pictures)


def test_extras_that_pages_and_messages_name_exist():
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {
        name for page in pages for name in re.findall(r"(?:potluck|any\.whl)\[([a-z]+)\]", page.read_text())
    }
    assert {"flower", "onnx", "privacy"} <= named <= extras


def test_workflows_and_ci_call_targets_that_exist():
    texts = [path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")] + [
        (ROOT / ".ci/run").read_text()
    ]
    called = {target for text in texts for target in re.findall(r"make ([a-z-]+)", text)}
    assert called <= TARGETS
    assert {"test", "docs", "dist", "test-browser", "test-flower", "docker-lint"} <= called


def test_targets_listed_by_make_help_are_phony():
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())
    assert set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE)) == phony


def test_files_for_others_can_be_read():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["id"] for hook in hooks} == {"ruff", "ruff-format", "mypy"}
    for template in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"):
        head = yaml.safe_load(template.read_text().split("---")[1])
        assert set(head) == {"name", "about"}


def test_container_does_not_run_as_root():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert lines.index("USER 1000") < lines.index('ENTRYPOINT ["potluck"]')
