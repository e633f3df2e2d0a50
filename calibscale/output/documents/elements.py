"""Elements of a document, for text and reports, and the sections that several documents share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from calibscale.estimators.known_estimators import SUMMARIES
from calibscale.formatting import fault_texts, naming, number_texts, terms
from calibscale.formatting.naming import name_of
from calibscale.output.documents.details import notes_of
from calibscale.results.cluster_results import Clusters
from calibscale.results.declarations import Json, as_json
from calibscale.results.estimate import EXACT, POPULATION, Estimate
from calibscale.results.outcome import RunResult
from calibscale.results.source_rows import SourceRows


@dataclass(frozen=True)
class Cell:
    """Cell of a table.

    Attributes
    ----------
    text : str
    state : str
        ``breached``, ``fine``, ``faint``, ``strong`` or empty.  The text also expresses the state.
    share : float or None
        Probability that determines the shade of the cell.
    """

    text: str
    state: str = ""
    share: float | None = None


@dataclass(frozen=True)
class TableColumn:
    """Header of a column.

    Attributes
    ----------
    title : str
    numbers : bool
        Whether the cells are numbers, which are right-aligned.
    optional : bool
        Whether the column is left out of text that is too narrow for it.
    legend : str
        Explanation of the column, which is printed below the table.
    """

    title: str
    numbers: bool = True
    optional: bool = False
    legend: str = ""

    @property
    def describes(self) -> bool:
        """Whether the texts describe the rows, so that pages show them below the names."""
        return self.optional and not self.numbers


def text_column(title: str) -> TableColumn:
    """Header of a column of texts, which are left-aligned."""
    return TableColumn(title, numbers=False)


Row: TypeAlias = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """Table with notes below it.  The first column names the rows."""

    kind: ClassVar[str] = "table"
    caption: str
    head: tuple[TableColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def description(self, row: Sequence[Cell]) -> str:
        """Description of a row, or an empty text if no column describes the rows."""
        columns = zip(row, self.head, strict=True)
        return next((cell.text for cell, column in columns if column.describes), "")

    @property
    def legend(self) -> tuple[str, ...]:
        """Lines below the table: a legend of each column that needs one, then the notes."""
        columns = (f"{column.title}: {column.legend}" for column in self.head if column.legend)
        return (*columns, *self.notes)


@dataclass(frozen=True)
class Figure:
    """Plot with its caption and numbers.

    Attributes
    ----------
    draw : callable
        Function that draws on axes, passed as ``ax``.
    height : float
        Height of the plot in points.
    label : str
        Alternative text.
    title : str
        Heading above the plot.
    in_text : bool
        Whether the numbers are printed where there are no plots.
    remark : str
        Summary that is written above the plot where there is no caption.
    probabilities : bool
        Whether both axes are probabilities, so that `draw` takes ``axes``.
    """

    kind: ClassVar[str] = "figure"
    draw: Callable[..., Any]
    height: float
    label: str
    caption: str
    numbers: Table
    title: str = ""
    in_text: bool = False
    remark: str = ""
    probabilities: bool = False

    def draw_on(self, ax: Any, axes: str = "linear") -> Any:
        """Draw the plot.  For probabilities, `axes` is their scale, see `plot_reliability`."""
        return self.draw(ax=ax, axes=axes) if self.probabilities else self.draw(ax=ax)


@dataclass(frozen=True)
class Figures:
    """Plots side by side if there is room, under one legend."""

    kind: ClassVar[str] = "figures"
    items: tuple[Figure, ...]


@dataclass(frozen=True)
class Paragraph:
    """Paragraph of text."""

    kind: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True)
class Listing:
    """List of sentences, or of terms with their definitions."""

    kind: ClassVar[str] = "listing"
    items: tuple[str, ...] = ()
    terms: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Facts:
    """Key numbers, as (name, number, remark)."""

    kind: ClassVar[str] = "facts"
    items: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Folded:
    """Blocks that are collapsed until the reader opens them."""

    kind: ClassVar[str] = "folded"
    summary: str
    blocks: tuple[Block, ...]


Block: TypeAlias = Table | Figures | Paragraph | Listing | Facts | Folded


@dataclass(frozen=True)
class Section:
    """Blocks under a title.  Sections with `detail` are in reports only."""

    name: str
    title: str
    blocks: tuple[Block, ...]
    detail: bool = False


@dataclass(frozen=True)
class Article:
    """Document of one result.

    Attributes
    ----------
    state : str
        ``fine``, ``incomplete``, ``breached``, ``alarm``, or empty if the result has no status.
    verdict : str
        Conclusion in one sentence.
    reasons : tuple of str
        Sentences that support the verdict.
    duration : str
        Computing time, or empty if it is unknown.  It is not shown in pictures, which are
        reproducible.
    """

    title: str
    subtitle: str
    verdict: str
    state: str = ""
    reasons: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    duration: str = ""

    @property
    def heading(self) -> str:
        """Subtitle and computing time."""
        return f"{self.subtitle}, {self.duration}" if self.duration else self.subtitle

    @property
    def figures(self) -> list[Figure]:
        """Plots of all sections."""
        blocks = [block for section in self.sections for block in section.blocks]
        return [plot for block in blocks if isinstance(block, Figures) for plot in block.items]


def table(
    caption: str,
    head: Sequence[str | TableColumn | None],
    rows: Iterable[Row],
    notes: str | Sequence[str] = (),
) -> Table:
    """Make a table of texts, by default with a first column of text and others of numbers.

    Columns whose header is None are left out.
    """
    columns = tuple(
        h if isinstance(h, TableColumn) else TableColumn(h, numbers=i > 0)
        for i, h in enumerate(head)
        if h is not None
    )
    cells = tuple(
        tuple(
            cell if isinstance(cell, Cell) else Cell(cell)
            for h, cell in zip(head, row, strict=True)
            if h is not None
        )
        for row in rows
    )
    # Empty notes are left out, so that callers need no conditions.
    lines = (notes,) if isinstance(notes, str) else tuple(notes)
    return Table(caption, columns, cells, tuple(filter(None, lines)))


def figures(items: Iterable[Figure | None]) -> Figures | None:
    """Plots side by side, or None if all items are None."""
    present = tuple(item for item in items if item is not None)
    return Figures(present) if present else None


def section(name: str, title: str, *blocks: Block | None, detail: bool = False) -> Section | None:
    """Make a section, or None if all blocks are None."""
    # Sections without content vanish, with their titles.
    present = tuple(block for block in blocks if block is not None)
    return Section(name, title, present, detail) if present else None


def article(
    title: str,
    subtitle: str,
    verdict: str,
    *sections: Section | None,
    state: str = "",
    reasons: tuple[str, ...] = (),
) -> Article:
    """Make a document of the sections that are not None."""
    present = tuple(part for part in sections if part is not None)
    return Article(title, subtitle, verdict, state, reasons, present)


# ---------------------------------------------------------------- shared sections


def source_name(result: Any) -> str:
    """Name of the source of a result, without its folders."""
    return naming.base(source_of(result).get("name") or "predictions")


def source_of(result: Any) -> Json:
    """Description of the source of a result, empty for results of several sources or of none."""
    return getattr(result, "source", None) or {}


_NAMED_GROUPS = 3  # in a note


def size_of(result: SourceRows) -> str:
    """Number of rows, with their kind and their clusters."""
    return rows_of(result.n, source_of(result)) + clusters_of(result)


def judged_rows(result: Any) -> str:
    """Number of rows, with the notion of their errors where classes have several."""
    source = source_of(result)
    # Other predictions have one notion, which their kind says already.
    has_one = "forecast" in source or source.get("event", {}).get("claim")
    return size_of(result) if has_one else f"{size_of(result)}, {terms.notion(result.notion)}"


def rows_of(count: int, source: Json) -> str:
    """Number of rows with the classes of a source, or the kind of its forecasts."""
    rows = number_texts.plural(count, "row")
    claim = source.get("event", {}).get("claim")
    if claim is not None:
        return f"{rows} of events claimed by {claim}"
    if source.get("forecast"):
        noun = "predictions" if source.get("claim") else "forecasts"
        return f"{rows} of {noun} ({source['kind']})"
    if source.get("classes") is not None:
        return f"{rows} of {source['classes']} classes"
    return rows


def clusters_of(result: Any) -> str:
    """Number of clusters and their properties, or an empty text without clusters."""
    clusters: Clusters | None = getattr(result, "clusters", None)
    if clusters is None:
        return ""
    accuracy = "" if clusters.exact else "about "
    text = f" in {accuracy}{clusters.count:,} clusters"
    properties = []
    if clusters.effective_count is not None:  # older results lack it
        properties.append(f"effectively {number_texts.number(clusters.effective_count)}")
    if clusters.design_effect is not None:
        correlation = number_texts.number(clusters.intraclass_correlation)
        effect = number_texts.number(clusters.design_effect)
        properties.append(f"intraclass correlation {correlation}, design effect {effect}")
    if properties:
        text += f" ({', '.join(properties)})"
    return "; ".join([f"{text} by {clusters.column}", *clusters.notes])


def closing(
    result: RunResult,
    names: Iterable[str],
    estimators: Iterable[str] = (),
    remarks: Iterable[str] = (),
    excluded: Sequence[Block | None] | None = None,
    **settings: Any,
) -> tuple[Section | None, ...]:
    """Sections that end a document: excluded rows, notes, terms, and all parameters and versions.

    `excluded` replaces the table of `left_out`.  `settings` come in addition to the parameters.
    """
    if excluded is None:
        excluded = [left_out(result)] if isinstance(result, SourceRows) else []
    # Several parts of a document may have the same note.
    notes = tuple(dict.fromkeys(remarks))
    return (
        section("rows", "What was left out", *excluded),
        section("notes", "Notes", Listing(notes) if notes else None),
        _terms(names, estimators),
        _settings(result, settings),
    )


def left_out(result: SourceRows) -> Table | None:
    """Table of excluded rows by reason, or None if all rows were used."""
    rows = [(reason, number_texts.count(n)) for reason, n in exclusions(result, "dropped: ")]
    if not rows:
        return None
    return table("Rows", ("status", "rows"), [("used", number_texts.count(result.n)), *rows])


def exclusions(result: SourceRows, dropped: str = "") -> Iterator[tuple[str, int]]:
    """Reasons for excluding rows, with the numbers of rows, after `dropped` for dropped rows."""
    if result.n_unlabelled:
        yield "without a label yet", result.n_unlabelled
    for reason, n in result.dropped.items():
        yield f"{dropped}{fault_texts.fault_text(reason)}", n


def estimator_notes(results: Iterable[Estimate]) -> list[str]:
    """Notes of estimators on their results."""
    return [f"{estimator}: {remark}" for estimator, remark in _remarks(results)]


def group_notes(groups: Iterable[tuple[str, Iterable[Estimate]]]) -> list[str]:
    """Notes of estimators on their results in groups, each with the groups that it is about."""
    # A note that several groups share is printed once, with the names of the groups.
    places: dict[tuple[str, str], list[str]] = {}
    for group, results in groups:
        for note in _remarks(results):
            places.setdefault(note, []).append(group)
    return [
        f"{estimator}, where {naming.joined(names, _NAMED_GROUPS)}: {remark}"
        for (estimator, remark), names in places.items()
    ]


def _remarks(results: Iterable[Estimate]) -> Iterator[tuple[str, str]]:
    """Name of an estimate, and a note of its estimator."""
    for estimate in results:
        for note in notes_of(estimate):
            yield terms.label(estimate), note


def _terms(names: Iterable[str], estimators: Iterable[str]) -> Section:
    """Section that defines each term and estimator of the report."""
    # Settings in brackets share the definition of the estimator.
    listed = dict.fromkeys(map(name_of, estimators))
    items = [(name, SUMMARIES[name]) for name in listed if name in SUMMARIES]
    items += [(name, terms.TERMS[name]) for name in dict.fromkeys(names)]
    folded = Folded("Definitions of terms", (Listing(terms=tuple(items)),))
    return Section("terms", "How to read this report", (folded,))


def _settings(result: RunResult, further: Json) -> Section:
    """Section of all parameters and versions."""
    # Parameters of the result replace settings of the same name.
    settings = {**further, **as_json(result.parameters)}
    source = {name: item for name, item in source_of(result).items() if item is not None}
    tables = (
        table(caption, head, list(_flat(values)))
        for caption, head, values in (
            ("Settings", ("parameter", "value"), settings),
            ("Source", ("property", "value"), source),
            ("Versions", ("package", "version"), result.versions),
        )
        if values
    )
    no_parameters = (Paragraph("The result contains no parameters."),)
    folded = Folded("All parameters and versions", tuple(tables) or no_parameters)
    return Section("settings", "Parameters", (folded,))


def _flat(value: Json, prefix: str = "") -> Iterable[tuple[str, str]]:
    """Flatten nested settings to dotted names."""
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict) and item:
            yield from _flat(item, f"{name}.")
        # A list of plain values is one setting.  Objects in a list are numbered and flattened.
        elif isinstance(item, list) and any(isinstance(element, dict | list) for element in item):
            for i, element in enumerate(item):
                inner = element if isinstance(element, dict) else {"": element}
                ending = "." if isinstance(element, dict) else ""
                yield from _flat(inner, f"{name}[{i}]{ending}")
        else:
            yield name, terms.plain(item)


def interval_terms(results: Sequence[Estimate]) -> list[str]:
    """Terms needed to explain a list of estimates."""
    names = []
    intervals = [e.interval for e in results if e.interval is not None]
    if intervals:
        names.append("interval")
    if any(interval.covers != POPULATION for interval in intervals):
        names.append("at this n")
    if any(e.squared for e in results):
        names.append("root")
    if any(e.approximation.kind != EXACT.kind for e in results):
        names.append("± approx.")
    return names
