"""Which room may import which, and how often a form occurs that is hard to read."""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import calibscale
from calibscale.cli.commands.plugins import REGISTRIES
from calibscale.estimators.base import BoundEstimator, Estimator
from calibscale.estimators.known_estimators import ESTIMATORS, LOCAL
from calibscale.registry import Registry, imported
from tests.support import ROOT
from tests.support.form_counts import (
    Count,
    SourceFile,
    bound_names,
    code_lines,
    comment_lines,
    conditions_in_texts,
    docstring_words,
    hand_formatted,
    kind_branches,
    long_signatures,
    multiplied_by_conditions,
    places,
    pronouns_for_nouns,
    relative_genitives,
    semicolons,
    share,
    source_files,
    text_subscripts,
    untyped_dictionaries,
    vague_names,
)

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
    "registry",
    "results",
    "compiled",
    "engine",
    "predictions",
    "data",
    "kernels",
    "statistics",
    "intervals",
    "estimators",
    "output",
    "session",
    "inference",
    "evaluation",
    "metrics",
    "planning",
    "selection",
    "ranking",
    "recalibration",
    "sklearn",
    "torch",
    "auditing",
    "simulation",
    "monitoring",
    "cli",
    "calibscale",
    "__main__",
)
LAZY = {"cli", "calibscale"}  # rooms whose functions may import, so that commands start quickly
# Imports in functions of other rooms, by module and what it imports, with the reason.
FEW_NIGHTS = "few nights need it, and its modules are many"
DEFERRED = {
    ("data.file_systems", "data.s3_files"): "s3fs is optional",
    ("data.source_arguments", "data.store"): "arrays do not need zarr, which is slow to import",
    ("estimators.settings", "kernels.features"): "commands show settings without loading NumPy",
    ("monitoring.job.job_consistency", "recalibration.choice"): FEW_NIGHTS,
    ("monitoring.job.job_consistency", "recalibration.method_registry"): FEW_NIGHTS,
    ("monitoring.ledger.map_files", "recalibration.fits"): FEW_NIGHTS,
    ("monitoring.night", "selection.cross_validation"): FEW_NIGHTS,
    ("monitoring.night_challenge", "recalibration.fitting"): FEW_NIGHTS,
    ("monitoring.night_challenge", "recalibration.parametric"): FEW_NIGHTS,
    ("monitoring.outputs", "output.report"): FEW_NIGHTS,
    ("output.exports", "library"): "pandas and polars are optional, and an argument chooses one",
    ("recalibration.fits", "output.plots.prediction_plots"): "only a plot needs matplotlib",
    ("session", "kernels.pair_sums"): "a pass sums no pairs, whose modules are many",
    ("registry", "module"): "classes are imported by the names of tables and entry points",
}
BY_STRING = {"import_module", "__import__"}  # functions that import what a string names


class Import(NamedTuple):
    """Import of a module of the package, or of the modules that a string names."""

    target: str
    line: int
    in_function: bool
    by_string: bool


def _modules() -> dict[str, Path]:
    """Path of each module by its name without the package's."""
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name or "calibscale"] = path
    return modules


def _tree(path: Path) -> ast.Module:
    """Statements of a file and, of packages, of the stub by which `lazy_loader` imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    stub = path.with_suffix(".pyi")
    if path.name == "__init__.py" and stub.exists():
        package = ".".join(path.relative_to(PACKAGE.parent).parent.parts)
        for node in ast.parse(stub.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                node.module = f"{package}.{node.module}" if node.module else package
                node.level = 0
            tree.body.append(node)
    return tree


MODULES = _modules()


@pytest.fixture(scope="module", autouse=True)
def _no_garbage_collection() -> Iterator[None]:
    """The statements of all files are millions of objects, which every collection would visit."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Statements of each module; a fixture, because other tests need neither time nor memory."""
    return {name: _tree(path) for name, path in MODULES.items()}


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _imported_names(node: ast.AST) -> list[str]:
    """Full names that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: imports are absolute"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return []


def _string_import(node: ast.AST) -> str:
    """Argument of a call that imports by a string, or nothing.

    A text with a placeholder ends in ``*``, and another expression is its code.
    """
    if not isinstance(node, ast.Call) or not node.args:
        return ""
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name not in BY_STRING:
        return ""
    argument = node.args[0]
    if isinstance(argument, ast.Constant):
        return str(argument.value)
    if isinstance(argument, ast.JoinedStr) and isinstance(argument.values[0], ast.Constant):
        return f"{argument.values[0].value}*"
    return ast.unparse(argument)


def _target(name: str) -> str:
    """Module of the package that defines or is a full name, or the name of another library."""
    if not name.startswith("calibscale."):
        return name
    inner = name.removeprefix("calibscale.")
    if inner.endswith("*"):
        return inner
    while inner and inner not in MODULES:  # a name inside a module
        inner = inner.rpartition(".")[0]
    return inner or "calibscale"


def _imports(tree: ast.Module) -> list[Import]:
    """Imports of the package, and imports by strings, wherever they stand in a module."""
    in_functions = {node for function in _functions(tree) for node in ast.walk(function)}
    imported = []
    for node in ast.walk(tree):
        for name in _imported_names(node):
            if name.partition(".")[0] == "calibscale":
                imported.append(Import(_target(name), node.lineno, node in in_functions, False))
        name = _string_import(node)
        if name:
            imported.append(Import(_target(name), node.lineno, node in in_functions, True))
    return imported


@pytest.fixture(scope="module")
def imports(trees: dict[str, ast.Module]) -> dict[str, list[Import]]:
    return {name: _imports(tree) for name, tree in trees.items()}


def _packages(module: str) -> set[str]:
    """Packages around a module, and the module itself."""
    parts = module.split(".")
    return {".".join(parts[:size]) for size in range(1, len(parts) + 1)}


def _loaded(module: str, target: str) -> set[str]:
    """Modules that an import loads: the target, and the files of the packages around it.

    The packages around the module itself are loaded before it.
    """
    if target.endswith("*"):
        names = [name for name in MODULES if name.startswith(target[:-1])]
    else:
        names = [target] if target in MODULES else []  # other libraries are in no room
    return set().union(*map(_packages, names)) - _packages(module)


def _room(module: str) -> str:
    return module.split(".")[0]


def _folder(module: str) -> str:
    return MODULES[module].parent.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import calibscale.errors", Import("errors", 1, False, False)),
        ("from calibscale.errors import OptionError", Import("errors", 1, False, False)),
        ("from calibscale import errors", Import("errors", 1, False, False)),
        ("if TYPE_CHECKING:\n    import calibscale.cli", Import("cli", 2, False, False)),
        ("def f():\n    from calibscale import evaluate", Import("calibscale", 2, True, False)),
        ("import_module('calibscale.data.source')", Import("data.source", 1, False, True)),
        ("importlib.import_module(f'calibscale.data.{x}')", Import("data.*", 1, False, True)),
        ("__import__('calibscale.errors').errors", Import("errors", 1, False, True)),
        ("def f(x):\n    import_module(x)", Import("x", 2, True, True)),
    ],
)
def test_imports__are_read_in_every_form(code, expected):
    assert _imports(ast.parse(code)) == [expected]


def test_imports__of_a_module_load_the_packages_around_it():
    loaded = {"data", "data.ingest", "data.ingest.readers"}
    assert _loaded("cli.program", "data.ingest.readers") == loaded
    assert _loaded("data.source", "data.ingest.readers") == loaded - {"data"}


def test_rooms__are_all_in_the_table():
    assert {_room(name) for name in MODULES} == set(ROOMS)


@pytest.mark.parametrize("module", MODULES)
def test_imports__point_to_lower_rooms(module, imports):
    position = ROOMS.index(_room(module))
    upward = [
        f"line {entry.line} imports {target}"
        for entry in imports[module]
        for target in _loaded(module, entry.target)
        if _room(target) != _room(module) and ROOMS.index(_room(target)) > position
    ]
    assert upward == []


TABLES = (*REGISTRIES.values(), "calibscale.cli.command_table:COMMANDS")


@pytest.mark.parametrize("table", TABLES)
def test_tables__name_classes_of_lower_rooms(table):
    registry: Registry[Any] = imported(table)
    modules = {registry.entry(name).path.partition(":")[0] for name in registry.built_in}
    room = _room(_target(table.partition(":")[0]))
    for module in modules:
        assert module.removeprefix("calibscale.") in MODULES
        assert ROOMS.index(_room(_target(module))) <= ROOMS.index(room)


def test_imports__are_not_circular(imports):
    """Modules that import no other one, or that no other one imports, are removed until none is."""
    left: dict[str, set[str]] = {}
    for module in MODULES:
        left[module] = set()
        for entry in imports[module]:
            if (module, entry.target) not in DEFERRED:
                left[module] |= _loaded(module, entry.target)
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


def test_imports__stand_at_the_top_of_modules(imports):
    in_functions = {
        (module, entry.target)
        for module in MODULES
        for entry in imports[module]
        if entry.in_function and _room(module) not in LAZY
    }
    assert in_functions == {entry for entry in DEFERRED if _room(entry[0]) not in LAZY}


def test_imports__by_strings_are_declared_and_few(imports):
    by_strings = {
        (module, entry.target) for module in MODULES for entry in imports[module] if entry.by_string
    }
    assert by_strings <= set(DEFERRED)
    of_this_package = {target for _, target in by_strings if target != "library"}
    assert len(of_this_package) <= 2


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_export(node: ast.stmt) -> bool:
    """Whether a statement lists the exported names, or takes them from a stub."""
    if not isinstance(node, ast.Assign):
        return False
    return (
        ast.unparse(node.targets[0]) == "__all__"
        or ast.unparse(node.value) == "lazy_loader.attach_stub(__name__, __file__)"
    )


@pytest.mark.parametrize("folder", ["examples", "benchmarks", "docs/_ext"])
def test_imports__of_scripts_are_names_of_the_package(folder):
    """No script waits for a run to learn that a name has moved."""
    if not (ROOT / folder).is_dir():
        pytest.skip(f"no folder {folder} here")
    missing = []
    for path in sorted((ROOT / folder).glob("**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.level:
                continue
            if (node.module or "").split(".")[0] != "calibscale":
                continue
            missing += [f"{path}: {a.name}" for a in node.names if not _exists(node.module, a.name)]
    assert not missing, missing


def _exists(module: str | None, name: str) -> bool:
    """Whether a module of the package has a name, or a module of this name."""
    assert module is not None
    if hasattr(import_module(module), name):
        return True
    try:
        return bool(import_module(f"{module}.{name}"))
    except ImportError:
        return False


def test_subpackages__hold_a_docstring_and_imports_only(trees):
    with_definitions = set()
    for name, path in MODULES.items():
        if path.name != "__init__.py" or name == "calibscale":
            continue
        for node in trees[name].body:
            is_import = isinstance(node, ast.Import | ast.ImportFrom)
            if not (is_import or _is_docstring(node) or _is_export(node)):
                with_definitions.add(name)
    assert with_definitions == set()


def test_folders__import_one_another_in_one_direction(imports):
    imported = defaultdict(set)
    for module in MODULES:
        for entry in imports[module]:
            if (module, entry.target) not in DEFERRED:
                targets = _loaded(module, entry.target)
                imported[_folder(module)] |= {_folder(target) for target in targets}
    circles = {
        (folder, target)
        for folder in imported
        for target in imported[folder]
        if "." != folder < target and folder in imported[target]
    }
    assert circles == set()


def test_names__of_files_are_unique():
    paths = defaultdict(list)
    for name, path in MODULES.items():
        # The file of a command has the name of the command, often that of the function it calls.
        if path.name not in ("__init__.py", "__main__.py") and path.parent.name != "commands":
            paths[path.name].append(name)
    assert {name: places for name, places in paths.items() if len(places) > 1} == {}


def test_names__of_public_classes_are_unique(trees):
    places = defaultdict(list)
    for module, tree in trees.items():
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


# ---------------------------------------------------------------- Bases and abilities of estimators

MOST_MEMBERS = 8


def _is_compiled(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(decorator).split("(")[0] in ("kernel", "inlined", "full_width")
        for decorator in node.decorator_list
    )


def _names_of_python(node: ast.AST) -> Iterator[str]:
    """Names and attributes that a tree uses outside of compiled functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name):
            yield f"{child.value.id}.{child.attr}"
        if not _is_compiled(child):
            yield from _names_of_python(child)


def _names_of(helpers: set[tuple[str, str]], tree: ast.Module) -> set[str]:
    """Names by which a module may use helpers of `compiled`, from its imports."""
    known: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and "compiled" in str(node.module):
            for alias in node.names:
                name = alias.asname or alias.name
                if (node.module, alias.name) in helpers:
                    known.add(name)
                imported_module = f"{node.module}.{alias.name}"
                known |= {f"{name}.{h}" for module, h in helpers if module == imported_module}
    return known


def test_helpers__of_kernels_are_called_by_compiled_functions_alone(trees, files_of_tests):
    """A call from Python would end the process, as helpers have no wrappers for it."""
    helpers = {
        (f"calibscale.{module}", node.name)
        for module, tree in trees.items()
        if module.startswith("compiled")
        for node in tree.body
        if _is_compiled(node) and "inlined" in ast.unparse(node.decorator_list[0])  # type: ignore[attr-defined]
    }
    assert len(helpers) > 40
    # Inside `compiled`, Numba's overloads name helpers too.
    others = {name: tree for name, tree in trees.items() if not name.startswith("compiled")}
    for place, tree in {**others, **{file.name: file.tree for file in files_of_tests}}.items():
        known = _names_of(helpers, tree)
        if known:
            assert not known & set(_names_of_python(tree)), place


def _members(kind: type) -> set[str]:
    """Public members of a class, and of its bases that are protocols."""
    names: set[str] = set()
    for base in kind.__mro__:
        if base is kind or getattr(base, "_is_protocol", False):
            names |= {*vars(base), *vars(base).get("__annotations__", ())}
    return {name for name in names if not name.startswith("_")}


@pytest.fixture(scope="module")
def abilities(trees: dict[str, ast.Module]) -> dict[str, type]:
    """Protocols that drivers check estimators for, by module and name."""
    abilities = {}
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and any(
                ast.unparse(decorator) == "runtime_checkable" for decorator in node.decorator_list
            ):
                name = f"calibscale.{module}"
                abilities[f"{name}.{node.name}"] = imported(f"{name}:{node.name}")
    return abilities


@pytest.mark.parametrize("base", [Estimator, BoundEstimator])
def test_bases__of_estimators_are_small(base):
    assert len(_members(base)) <= MOST_MEMBERS


def test_bases__of_estimators_do_not_inherit_from_each_other():
    assert not issubclass(Estimator, BoundEstimator)
    assert not issubclass(BoundEstimator, Estimator)


def test_abilities__are_small_described_and_documented(abilities):
    page = (ROOT / "docs/reference/abilities.md").read_text()
    assert len(abilities) > 20
    for ability, protocol in abilities.items():
        assert 1 <= len(_members(protocol)) <= MOST_MEMBERS, ability
        assert protocol.__doc__, ability
        assert f"\n   {ability}\n" in page, ability


def test_abilities__are_checked_without_errors(abilities):
    """A member that is a property is evaluated by `isinstance`, also before `bind`."""
    for name in ESTIMATORS.built_in:
        settings = {"covariates": ("a",)} if name in LOCAL else {}
        estimator = ESTIMATORS[name](**settings)
        assert not all(isinstance(estimator, protocol) for protocol in abilities.values())


# ---------------------------------------------------------------- Forms

LEAST_COMMENTS = 0.06  # lines of comments for each line of code
LEAST_COMMENTS_OF_TESTS = 0.035  # names of tests say what their code is about


@pytest.fixture(scope="module")
def files() -> list[SourceFile]:
    return source_files(PACKAGE)


@pytest.fixture(scope="module")
def files_of_tests() -> list[SourceFile]:
    return source_files(Path(__file__).parent)


@pytest.mark.parametrize(
    ("count", "most"),
    [
        (hand_formatted, 12),  # tables of numbers
        (multiplied_by_conditions, 0),
        (conditions_in_texts, 10),
        (long_signatures, 0),
        (text_subscripts, 80),  # of free-form details, settings and styles
        (untyped_dictionaries, 25),
        (kind_branches, 8),  # where arguments, job files and descriptions are read
    ],
)
def test_forms__of_code_are_rare(files, count: Count, most: int):
    counted = places(count, files)
    assert len(counted) <= most, counted


@pytest.mark.parametrize(
    ("count", "total", "most"),
    [
        (vague_names, bound_names, 6 / 1000),
        (semicolons, docstring_words, 25 / 10_000),
        (pronouns_for_nouns, docstring_words, 3 / 10_000),
        (relative_genitives, docstring_words, 8 / 10_000),
    ],
)
def test_forms__of_names_and_sentences_are_rare(files, count: Count, total: Count, most: float):
    assert share(count, total, files) <= most, places(count, files)


def test_comments__say_why_often_enough(files):
    assert share(comment_lines, code_lines, files) >= LEAST_COMMENTS


# Limits of tests are near the numbers that the tests have, so that no form spreads again.


@pytest.mark.parametrize(
    ("count", "most"),
    [
        (hand_formatted, 4),
        (multiplied_by_conditions, 0),
        (conditions_in_texts, 10),
        (long_signatures, 0),
    ],
)
def test_forms__of_code_are_rare_in_tests(files_of_tests, count: Count, most: int):
    counted = places(count, files_of_tests)
    assert len(counted) <= most, counted


@pytest.mark.parametrize(
    ("count", "total", "most"),
    [
        (vague_names, bound_names, 3 / 1000),
        (semicolons, docstring_words, 5 / 10_000),
        (pronouns_for_nouns, docstring_words, 3 / 10_000),
        (relative_genitives, docstring_words, 8 / 10_000),
    ],
)
def test_forms__of_names_and_sentences_are_rare_in_tests(
    files_of_tests, count: Count, total: Count, most: float
):
    assert share(count, total, files_of_tests) <= most, places(count, files_of_tests)


def test_comments__of_tests_say_why_often_enough(files_of_tests):
    assert share(comment_lines, code_lines, files_of_tests) >= LEAST_COMMENTS_OF_TESTS


@pytest.mark.parametrize(
    ("count", "code"),
    [
        (hand_formatted, "eye = [1, 0,\n       0, 1]  # fmt: skip"),
        (multiplied_by_conditions, "needed = [1] * (rows > 3)"),
        (multiplied_by_conditions, "'text' * any(rows)"),
        (conditions_in_texts, "f'{rows if rows else 0} rows'"),
        (text_subscripts, "result['value']"),
        (untyped_dictionaries, "def f(result: dict[str, Any]): ..."),
        (kind_branches, "if source.forecast is None:\n    pass"),
        (long_signatures, f"def f({', '.join(f'x{k}' for k in range(13))}): ..."),
        (vague_names, "for other in range(3): pass"),
        (vague_names, "def f(what): ..."),
        (semicolons, "def f():\n    'Rows; of a source.'"),
        (pronouns_for_nouns, "'Rows of a source, and those of another.'"),
        (relative_genitives, "class A:\n    'A source whose rows are sorted.'"),
        (comment_lines, "x = 1  # as in the paper"),
        (code_lines, "'Text.'\n\n# a comment\nx = 1"),
    ],
)
def test_counts__find_their_form(count, code):
    assert len(places(count, [SourceFile("calibscale/output/module.py", code)])) == 1


@pytest.mark.parametrize(
    ("count", "code"),
    [
        (multiplied_by_conditions, "[1] * size"),
        (long_signatures, f"def _f({', '.join(f'x{k}' for k in range(13))}): ..."),
        (vague_names, "print(what)"),
        (semicolons, "'Rows.\\n>>> x = 1; y = 2'"),
        (semicolons, "x = 'no docstring; a text'"),
        (comment_lines, "import numpy  # noqa: F401"),
    ],
)
def test_counts__leave_other_forms_out(count, code):
    assert places(count, [SourceFile("module.py", code)]) == []
