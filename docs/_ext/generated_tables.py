"""Directives `job-keys` and `schemas`: tables of what the code declares."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from docutils import nodes
from pydantic import TypeAdapter
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from calibscale.monitoring.job.job_tables import Job

Schema = dict[str, Any]


def _values(schema: Schema) -> str:
    """Values that a JSON schema allows, in words."""
    if "anyOf" in schema:
        return " or ".join(_values(s) for s in schema["anyOf"] if s != {"type": "null"})
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    limits = {"minimum": "≥", "maximum": "≤", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}
    ends = ", ".join(f"{sign} {schema[key]:g}" for key, sign in limits.items() if key in schema)
    kinds = {"string": "text", "boolean": "true, false", "object": "table"}
    kind = kinds.get(schema.get("type", ""), schema.get("type", "table"))
    kind = f"list of: {_values(schema['items'])}" if kind == "array" else kind
    return f"{kind} {ends}".strip()


def job_tables(name: str, schema: Schema, parts: Schema) -> Iterator[tuple[str, str, list]]:
    """Heading, description, and rows of each table of a job file, outer ones first."""
    rows, inner = [], []
    for key, value in schema["properties"].items():
        several = [value, value.get("items", {}), *value.get("anyOf", ())]
        references = [s["$ref"].rpartition("/")[2] for s in several if "$ref" in s]
        path = f"{name}.{key}" if name else key
        if references:
            inner += [("[" * (value.get("type") == "array") + path, parts[references[0]])]
        else:
            default = value.get("default")
            shown = "required" if key in schema.get("required", ()) else ""
            shown = shown if default in (None, []) else f"`{json.dumps(default)}`"
            rows.append([f"`{key}`", _values(value), shown])
    title = f"`[{name}{']' * name.count('[')}]`" if name else "Keys above all tables"
    yield title, schema.get("description", "").split("\n\n")[0], rows
    for path, part in inner:
        yield from job_tables(path, part, parts)


def _table(*rows: list[str]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


class JobKeys(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        schema = TypeAdapter(Job).json_schema()
        head = ["key", "values", "default"]
        tables = job_tables("", schema, schema["$defs"])
        text = "\n".join(f"## {t}\n\n{about}\n\n{_table(head, *rows)}" for t, about, rows in tables)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class Schemas(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        folder = files("calibscale.results") / "schemas"
        texts = {each.name: each.read_text() for each in folder.iterdir() if ".json" in each.name}
        schemas = {name: json.loads(text) for name, text in sorted(texts.items())}
        rows = [[f"`{n}`", f"`{s['$id']}`", s.get("description", "")] for n, s in schemas.items()]
        return self.parse_text_to_nodes(_table(["file", "identifier", "result"], *rows))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("job-keys", JobKeys)
    app.add_directive("schemas", Schemas)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
