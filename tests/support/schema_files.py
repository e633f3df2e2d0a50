"""Generator of the JSON Schemas: ``python -m tests.support.schema_files`` writes their files."""

from __future__ import annotations

import json
from functools import reduce
from operator import or_
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from calibscale.results.schemas.result_models import RESULTS, models
from calibscale.results.schemas.schema_files import path


class _Schema(GenerateJsonSchema):
    """Generator without the titles and defaults of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])


def text_of_schema(name: str) -> str:
    """Text of the file of a schema: JSON with one line for each member of an object."""
    adapter: TypeAdapter[Any] = TypeAdapter(reduce(or_, models(name)))
    document = {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": "urn:" + name.replace(".", ":").replace("/", ":"),
        **adapter.json_schema(schema_generator=_Schema),
        "title": name,
    }
    return _text(document, "") + "\n"


def _text(table: dict[str, Any], indent: str) -> str:
    lines = []
    for key, value in table.items():
        if key in ("properties", "$defs") or (isinstance(value, dict) and "properties" in value):
            text = _text(value, indent + " ")
        else:
            text = json.dumps(value, ensure_ascii=False)
        lines.append(f"{indent} {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


if __name__ == "__main__":
    for name in RESULTS:
        path(name).write_text(text_of_schema(name), encoding="utf-8")
