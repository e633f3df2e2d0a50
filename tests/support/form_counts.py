"""Counts of forms that make Python hard to read, such as names that say nothing.

``python -m tests.support.form_counts NAME`` prints the places of a count, such as `vague_names`,
in the package, and ``python -m tests.support.form_counts NAME tests`` the places in tests.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

# Pronouns, participles and prepositions, while the name of a value should be a noun.
_VAGUE = """
    all_ asked both by done each every found given got had held it kept known made mine my none of
    ok one ones other others own rest same some stuff such taken text_ them their theirs
    these thing things those told what which whole whom with_
"""
VAGUE = frozenset(_VAGUE.split())
MOST_PARAMETERS = 12  # of a public function
_DIRECTIVE = re.compile(r"#\s*(fmt:|noqa|type:|ruff:|mypy:|pragma:)")
_CONDITIONAL_CALLS = {"all", "any", "bool", "hasattr", "isinstance"}


class Place(NamedTuple):
    """Place of a form that is counted."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class SourceFile:
    """A module, with its syntax tree and its comments."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def comments(self) -> list[tokenize.TokenInfo]:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [token for token in tokens if token.type == tokenize.COMMENT]

    @cached_property
    def docstrings(self) -> list[ast.Constant]:
        """Docstrings of the module, its classes and its functions."""
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        constants = []
        for node in self.nodes:
            if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
                constants.append(node.body[0].value)
        return constants

    def place(self, node: ast.AST, text: str = "") -> Place:
        """Place of a node, by default with the first line of its code."""
        return Place(self.name, node.lineno, text or ast.unparse(node).partition("\n")[0])


def source_files(package: Path) -> list[SourceFile]:
    """Modules of a package, in the order of their paths."""
    return [
        SourceFile(str(path.relative_to(package.parent)), path.read_text(encoding="utf-8"))
        for path in sorted(package.rglob("*.py"))
    ]


# ---------------------------------------------------------------- Code


def hand_formatted(file: SourceFile) -> Iterator[Place]:
    """Lines that the formatter leaves alone."""
    for comment in file.comments:
        if re.search(r"fmt:\s*(skip|off)", comment.string):
            yield Place(file.name, comment.start[0], comment.line.strip())


def multiplied_by_conditions(file: SourceFile) -> Iterator[Place]:
    """Lists and texts times a condition, in the place of an ``if``."""
    for node in file.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = (node.left, node.right)
            if any(map(_is_sequence, sides)) and any(map(_is_condition, sides)):
                yield file.place(node)


def _is_sequence(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    return isinstance(node, ast.List | ast.Tuple | ast.JoinedStr)


def _is_condition(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _CONDITIONAL_CALLS
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, ast.Compare | ast.BoolOp)


def conditions_in_texts(file: SourceFile) -> Iterator[Place]:
    """Placeholders of f-strings that contain a condition."""
    conditions = ast.IfExp | ast.BoolOp | ast.Compare
    for node in file.nodes:
        if isinstance(node, ast.FormattedValue) and any(
            isinstance(inner, conditions) for inner in ast.walk(node.value)
        ):
            yield file.place(node)


def long_signatures(file: SourceFile) -> Iterator[Place]:
    """Public functions with more parameters than a reader remembers."""
    for node in file.nodes:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            arguments = node.args
            listed = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            if len(listed) > MOST_PARAMETERS:
                yield file.place(node, f"{node.name} has {len(listed)} parameters")


def bound_names(file: SourceFile) -> Iterator[Place]:
    """Variables where they get a value, and parameters."""
    for node in file.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield file.place(node, node.id)
        elif isinstance(node, ast.arg):
            yield file.place(node, node.arg)


def vague_names(file: SourceFile) -> Iterator[Place]:
    """Bound names that do not say what the value is."""
    return (place for place in bound_names(file) if place.text in VAGUE)


# ---------------------------------------------------------------- Results and targets

_OUTPUT = "calibscale/output/"
_RESULTS = "calibscale/results/"
_TARGETS = "calibscale/predictions/"
_KIND_OF_PREDICTION = re.compile(r"\b(forecasts?|of_forecasts|_?soft)\b")


def text_subscripts(file: SourceFile) -> Iterator[Place]:
    """Members of a result that output takes from a dictionary, not from a dataclass."""
    if not file.name.startswith(_OUTPUT):
        return
    for node in file.nodes:
        key = node.slice if isinstance(node, ast.Subscript) else None
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield file.place(node)


def untyped_dictionaries(file: SourceFile) -> Iterator[Place]:
    """Dictionaries of any values in results and output."""
    if file.name.startswith((_OUTPUT, _RESULTS)):
        for node in file.nodes:
            if isinstance(node, ast.Subscript) and ast.unparse(node) == "dict[str, Any]":
                yield file.place(node)


def kind_branches(file: SourceFile) -> Iterator[Place]:
    """Conditions on the kind of prediction outside its room, where a `Target` should be asked."""
    if file.name.startswith(_TARGETS):
        return
    for node in file.nodes:
        if isinstance(node, ast.If | ast.IfExp):
            condition = ast.unparse(node.test)
            if _KIND_OF_PREDICTION.search(condition):
                yield file.place(node, condition)


# ---------------------------------------------------------------- Comments and docstrings


def comment_lines(file: SourceFile) -> Iterator[Place]:
    """Lines with a comment for a reader, not for a tool."""
    for comment in file.comments:
        if not _DIRECTIVE.match(comment.string):
            yield Place(file.name, comment.start[0], comment.string)


def code_lines(file: SourceFile) -> Iterator[Place]:
    """Lines with code, which are neither empty nor part of a docstring or a comment."""
    documented: set[int] = set()
    for constant in file.docstrings:
        documented.update(range(constant.lineno, constant.end_lineno + 1))
    for number, line in enumerate(file.text.splitlines(), 1):
        text = line.strip()
        if text and not text.startswith("#") and number not in documented:
            yield Place(file.name, number, text)


def docstring_words(file: SourceFile) -> Iterator[Place]:
    """Words of docstrings, without their examples."""
    for constant in file.docstrings:
        for word in _prose(constant).split():
            yield file.place(constant, word)


def semicolons(file: SourceFile) -> Iterator[Place]:
    """Semicolons of docstrings, where a full stop would be easier to read."""
    return _phrases(file, ";")


def pronouns_for_nouns(file: SourceFile) -> Iterator[Place]:
    """Docstrings with "that of" or "those of", where the noun would be easier to read."""
    return _phrases(file, r"\b(?:that|those) of\b")


def relative_genitives(file: SourceFile) -> Iterator[Place]:
    """Docstrings with "of which", "of whom" or "whose", where a second sentence is easier."""
    return _phrases(file, r"\b(?:of which|of whom|whose)\b")


def _prose(docstring: ast.Constant) -> str:
    return docstring.value.partition(">>>")[0]


def _phrases(file: SourceFile, pattern: str) -> Iterator[Place]:
    for constant in file.docstrings:
        for match in re.finditer(pattern, _prose(constant)):
            start, end = match.span()
            yield file.place(constant, " ".join(constant.value[max(start - 40, 0) : end].split()))


# ---------------------------------------------------------------- Shares

Count = Callable[[SourceFile], Iterable[Place]]


def places(count: Count, files: Iterable[SourceFile]) -> list[Place]:
    """Places of a count in all files."""
    return [place for file in files for place in count(file)]


def share(count: Count, total: Count, files: Iterable[SourceFile]) -> float:
    """Number of places of a count for each place of another."""
    files = list(files)
    return len(places(count, files)) / len(places(total, files))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in globals():
        sys.exit("usage: python -m tests.support.form_counts COUNT [FOLDER], such as vague_names")
    folder = Path(sys.argv[2] if len(sys.argv) == 3 else "calibscale")
    for place in places(globals()[sys.argv[1]], source_files(folder)):
        print(*place, sep=":")
