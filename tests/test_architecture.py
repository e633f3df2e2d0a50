"""Which room may import which."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import calibscale

PACKAGE = Path(calibscale.__file__).parent
# A room may import the rooms before it.
ROOMS = (
    "errors",
    "array_types",
    "addresses",
    "forks",
    "signals",
    "atomic_files",
    "formatting",
    "results",
    "kernels",
    "engine",
    "data",
    "limits",
    "kernel_sums",
    "statistics",
    "estimators",
    "session",
    "inference",
    "evaluation",
    "metrics",
    "planning",
    "selection",
    "ranking",
    "recalibration",
    "auditing",
    "simulation",
    "output",
    "monitoring",
    "cli",
    "calibscale",
    "__main__",
)
LAZY = {"cli", "calibscale"}  # rooms whose functions may import, so that commands start quickly


def _modules() -> dict[str, Path]:
    """Path of each module by its name without the package's."""
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name or "calibscale"] = path
    return modules


MODULES = _modules()
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def _imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Modules of the package that are imported anywhere in a module, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            full = [alias.name for alias in node.names]
        else:
            continue
        for name in full:
            if name == "calibscale" or name.startswith("calibscale."):
                inner = name.removeprefix("calibscale").removeprefix(".")
                while inner and inner not in MODULES:  # a name inside a module
                    inner = inner.rpartition(".")[0]
                yield inner or "calibscale", node.lineno


def _room(module: str) -> str:
    return module.split(".")[0]


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_rooms__are_all_in_the_table():
    assert {_room(name) for name in MODULES} == set(ROOMS)


@pytest.mark.parametrize("module", MODULES)
def test_imports__point_to_lower_rooms(module):
    position = ROOMS.index(_room(module))
    upward = [
        f"line {line} imports {target}"
        for target, line in _imports(TREES[module])
        if _room(target) != _room(module) and ROOMS.index(_room(target)) > position
    ]
    assert upward == []


def test_imports__are_not_circular():
    """Modules that import no other one, or that no other one imports, are removed until none is."""
    left = {
        name: {target for target, _ in _imports(tree) if target != name}
        for name, tree in TREES.items()
    }
    size = len(left) + 1
    while len(left) < size:
        size = len(left)
        imported = set().union(*left.values())
        left = {
            name: targets & left.keys()
            for name, targets in left.items()
            if name in imported and targets & left.keys()
        }
    assert left == {}


@pytest.mark.long
def test_imports__stand_at_the_top_of_modules():
    lazy = [
        f"{module}: line {inner.lineno}"
        for module, tree in TREES.items()
        if _room(module) not in LAZY
        for function in _functions(tree)
        for inner in ast.walk(function)
        if isinstance(inner, ast.ImportFrom) and (inner.module or "").startswith("calibscale")
    ]
    assert lazy == []


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_export_list(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


def test_subpackages__hold_a_docstring_and_imports_only():
    with_definitions = set()
    for name, path in MODULES.items():
        if path.name != "__init__.py" or name == "calibscale":
            continue
        for node in TREES[name].body:
            is_import = isinstance(node, ast.Import | ast.ImportFrom)
            if not (is_import or _is_docstring(node) or _is_export_list(node)):
                with_definitions.add(name)
    assert with_definitions == set()


def test_folders__import_one_another_in_one_direction():
    imported = defaultdict(set)
    for module, tree in TREES.items():
        folder = MODULES[module].parent.relative_to(PACKAGE).as_posix()
        for target, _ in _imports(tree):
            imported[folder].add(MODULES[target].parent.relative_to(PACKAGE).as_posix())
    circles = {
        (folder, other)
        for folder in imported
        for other in imported[folder]
        if "." != folder < other and folder in imported[other]
    }
    assert circles == set()


def test_names__of_files_are_unique():
    paths = defaultdict(list)
    for name, path in MODULES.items():
        # The file of a command has the name of the command, often that of the function it calls.
        if path.name not in ("__init__.py", "__main__.py") and path.parent.name != "commands":
            paths[path.name].append(name)
    assert {name: places for name, places in paths.items() if len(places) > 1} == {}


def test_names__of_public_classes_are_unique():
    places = defaultdict(list)
    for module, tree in TREES.items():
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}
