"""Sample logs of multiple-choice tasks, with any number of choices a question."""

from __future__ import annotations

from collections.abc import Iterator
from io import TextIOWrapper
from typing import Any

from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.readers import Reader
from calibscale.data.ingest.text_readers import JsonLinesFile
from calibscale.errors import InvalidDataError

_ABSENT = -10_000.0  # logit of a choice that a question does not have: its probability is 0


def json_lines(file: InputFile) -> Reader:
    """Reader of JSON Lines; of sample logs of lm-evaluation-harness if the first line is of one."""
    with TextIOWrapper(file.open(), encoding="utf-8-sig", errors="replace") as lines:
        first = next((line for line in lines if line.strip()), "")
    return ChoiceLogFile(file) if '"filtered_resps": [' in first else JsonLinesFile(file)


class ChoiceLogFile(JsonLinesFile):
    """Reader of ``samples_*.jsonl`` of lm-evaluation-harness (``--log_samples``).

    Columns are ``logits``, the log-likelihoods of the choices, ``labels``, the number of the right
    one, ``choices``, their number, and members of the document, such as ``doc.subject``.  Questions
    with fewer choices than others have logits of −10,000, which are probabilities of 0.
    """

    def __init__(self, file: InputFile) -> None:
        self._file, self._width = file, 0
        self._width = max((row["choices"] for _, row in self._objects()), default=0)
        super().__init__(file)

    def _objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for line, row in super()._objects():
            try:
                yield line, self._choice(row)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                reason = error if isinstance(error, ValueError) else f"{type(error).__name__}"
                raise InvalidDataError(
                    f"{self._file}, line {line}: not a sample of a multiple-choice task ({reason})"
                ) from error

    def _choice(self, row: dict[str, Any]) -> dict[str, Any]:
        """Columns of a sample."""
        logits = [float(response[0]) for response in row["filtered_resps"]]
        count, target = len(logits), str(row["target"]).strip()
        texts = [str(row[f"arguments.gen_args_{i}"]["arg_1"]).strip() for i in range(count)]
        named = [texts.index(target)] if target in texts else []
        numbered = [int(target)] if target.isdecimal() and int(target) < count else []
        if not (candidates := numbered + named):
            raise ValueError(f"the target {target[:60]!r} is none of its {count} choices")
        # "2" may be a number or a text: the accuracy says whether the likeliest choice is right
        likeliest, right = logits.index(max(logits)), row.get("acc") == 1.0
        fitting = [label for label in candidates if (label == likeliest) == right]
        label = (fitting or candidates)[0]
        document = {
            name: value for name, value in row.items()
            if name.startswith("doc.") and isinstance(value, str | int | float)
        }  # fmt: skip
        padding = [_ABSENT] * (self._width - count)
        return {"logits": logits + padding, "labels": label, "choices": count, **document}
