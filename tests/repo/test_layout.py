"""The package layout: import direction, independence of the contract, size of files."""

import ast
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "potluck"
FILES = sorted(ROOT.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


def package(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def edges() -> dict[str, set[str]]:
    """The packages that each package imports from; late imports inside functions count as well."""
    graph: dict[str, set[str]] = {}
    for path in FILES:
        packages = {name.split(".")[1] for name in imported(path) if name.startswith("potluck.")}
        if not package(path).startswith("__"):
            graph.setdefault(package(path), set()).update(packages - {package(path)})
    return graph


def test_packages_do_not_import_in_a_circle():
    graph = edges()

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(graph.get(start, ()))
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += graph.get(name, ())
        return seen

    assert [name for name in graph if name in reached(name)] == []


def test_the_contract_needs_torch_and_the_standard_library_alone():
    third_party = {
        name.split(".")[0]
        for path in (ROOT / "core").glob("*.py")
        for name in imported(path)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "torch", "potluck"}
    }
    assert third_party == set()


def test_the_root_has_three_modules():
    loose = [path.stem for path in ROOT.glob("*.py") if not path.stem.startswith("__")]
    assert sorted(loose) == ["api", "doctor", "method"]


def test_a_method_file_imports_from_few_places():
    counts = [
        len({name for name in imported(path) if name.startswith("potluck")})
        for path in (ROOT / "methods").glob("*.py")
        if path.stem != "__init__"
    ]
    assert statistics.median(counts) <= 3


def test_functions_fit_on_a_page():
    long = [
        f"{path.name}:{node.name} has {lines} lines"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > 50
    ]
    assert long == []
