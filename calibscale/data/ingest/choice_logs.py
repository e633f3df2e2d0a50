"""Questions with any number of choices: JSON Lines, and logs of lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from string import ascii_uppercase
from typing import Any

from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.readers import Reader
from calibscale.data.ingest.row_bounds import RowBounds
from calibscale.data.ingest.text_readers import FIRST_ROWS, JsonLinesFile, json_objects
from calibscale.data.source import KINDS
from calibscale.errors import InvalidDataError

_ABSENT = {"logits": -float("inf"), "probabilities": 0.0}  # scores of choices that are missing
_OTHER_NAMES = {"logits": "logprobs", "labels": "label"}


def json_lines(file: InputFile, keys: Mapping[str, str] | None = None) -> Reader:
    """Reader of JSON Lines, or of questions if the first lines are questions.

    Questions have a list of `choices`, scores of different lengths or by letters, or the names
    ``logprobs`` or ``label``.  `keys` name the members of roles, see `ingest`.
    """
    if keys and "top_k" in keys:  # lists have the scores of the most probable classes
        return JsonLinesFile(file)
    if keys and "predictions" in keys:  # of outcomes, or sets
        return _lines(file, keys)
    first = [row for _, row in islice(json_objects(file), FIRST_ROWS)]
    if first and isinstance(first[0].get("filtered_resps"), list):
        return ChoiceLogFile(file)
    fields = _fields({name for row in first for name in row}, keys or {})
    if [role == "labels" for role, *_ in fields] != [False, True]:
        return _lines(file, keys or {})
    _, member, _ = fields[0]
    scores = [_scores(row, member) for row in first]
    lists = [row_scores for row_scores in scores if row_scores is not None]
    if lists and all(isinstance(row_scores, list) for row_scores in lists):
        lengths = {len(row_scores) for row_scores in lists}
        # Lists of one number and lists of more are not questions, but a fault that the reader
        # names.
        several = len(lengths) > 1 and min(lengths) > 1
        renamed = any(name != field for _, field, name in fields)
        lettered = any(_by_letter(row, member) for row in first)
        texts = any(isinstance(row.get("choices"), list) for row in first)
        if several or renamed or lettered or texts:
            return ChoicesFile(file, *fields)
    return _lines(file, keys or {})


def _lines(file: InputFile, keys: Mapping[str, str]) -> JsonLinesFile:
    """Reader of JSON Lines that knows the columns of the keys, in whatever row they first occur."""
    reader = JsonLinesFile(file)
    reader.find(chain(*(name.split(",") for name in keys.values())))
    return reader


def _fields(present: set[str], keys: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Role, member, and name as a column, of the predictions and of the labels."""
    kinds = [kind for kind in KINDS if kind in keys] or KINDS
    names = {role: keys.get(role, role) for role in (*kinds, "labels")}
    members = {
        role: name if name in present else _OTHER_NAMES.get(name, name)
        for role, name in names.items()
    }
    return [
        (role, member, names[role])
        for role, member in members.items()
        if member in present or (role != "labels" and f"{member}.A" in present)
    ]


def _by_letter(row: Mapping[str, Any], member: str) -> dict[str, Any]:
    """Scores of the choices that an object names by their letters, such as {"A": −0.1}."""
    inner = {letter: row.get(f"{member}.{letter}") for letter in ascii_uppercase}
    return {letter: value for letter, value in inner.items() if value is not None}


def _scores(row: Mapping[str, Any], member: str, absent: float = 0.0) -> Any:
    """Scores of the choices of a question in their order, or None if they are missing.

    A letter that is missing before others is a choice that the question does not have.
    """
    by_letter = _by_letter(row, member)
    if row.get(member) is not None or not by_letter:
        return row.get(member)
    # Up to the last letter that has a score.
    width = ascii_uppercase.index(max(by_letter)) + 1
    return [by_letter.get(letter, absent) for letter in ascii_uppercase[:width]]


def _letter(label: str) -> int | None:
    """Position of a choice by its letter, such as ``B`` or ``(b)``, or None for other texts."""
    letter = label.strip().strip("().").upper()
    return ord(letter) - ord("A") if len(letter) == 1 and "A" <= letter <= "Z" else None


def _position(label: str, choices: list[Any]) -> int:
    """Position of the right choice by its text, or else by its letter or number."""
    # The text decides first: a choice may be the letter or number of another one.
    if choices.count(label) == 1:
        return choices.index(label)
    letter, number = _letter(label), label.strip()
    position = int(number) if number.isdecimal() else letter
    if position is None or position >= len(choices) or label in choices:
        raise ValueError(f"{label[:60]!r} is not one of its choices")
    return position


class ChoicesFile(JsonLinesFile):
    """Reader of questions: lists of scores, and labels among `choices`: numbers, texts, letters.

    The column ``choices`` is their number.  Choices that a question does not have, but other
    questions have, are choices of probability 0.  Scores are a list, or an object with the letters
    of the choices.  Scores that are null are missing.
    """

    def __init__(
        self, file: InputFile, scores: tuple[str, str, str], labels: tuple[str, str, str]
    ) -> None:
        self._file, self._scores, self._labels, self._width = file, scores, labels, 0
        # The width is 0 here, so that rows are not padded yet.  Their scores may be missing.
        lengths = (len(row[scores[2]] or ()) for _, row in self._objects())
        self._width = max(lengths, default=0)
        super().__init__(file)

    def _objects(self, bounds: RowBounds | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        for line, row in super()._objects(bounds):
            try:
                yield line, self._question(row)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                reason = error if isinstance(error, ValueError) else f"{type(error).__name__}"
                raise InvalidDataError(
                    f"{self._file}, line {line}: not a multiple-choice question ({reason})"
                ) from error

    def _question(self, row: dict[str, Any]) -> dict[str, Any]:
        """Columns of a question."""
        (kind, scores, scores_name), (_, labels, labels_name) = self._scores, self._labels
        values = _scores(row, scores, _ABSENT[kind])
        row = {
            name: value
            for name, value in row.items()
            if name != scores and not name.startswith(f"{scores}.")
        }
        label, choices = row.pop(labels, None), row.get("choices")
        if values is None:
            return row | {"choices": None, scores_name: None, labels_name: label}
        if not (isinstance(values, list) and values):
            raise ValueError(f"{scores!r} must be a list of numbers")
        if isinstance(choices, list):
            if len(choices) != len(values):
                raise ValueError(f"{len(values)} {scores}, but {len(choices)} choices")
            if isinstance(label, str):
                label = _position(label, choices)
        elif isinstance(label, str) and (_letter(label) or 0) >= len(values):
            raise ValueError(f"the label is {label!r}, but there are {len(values)} choices")
        # Padding would turn the label into a choice that the question does not have.
        if isinstance(label, int | float) and label >= len(values):
            raise ValueError(f"the label is {label}, but there are {len(values)} choices, from 0")
        # The scores themselves may be called choices, and then replace the number of choices.
        columns = {scores_name: self._padded(values), labels_name: label}
        return row | {"choices": len(values)} | columns

    def _padded(self, values: list[Any]) -> list[Any]:
        return values + [_ABSENT[self._scores[0]]] * (self._width - len(values))


class ChoiceLogFile(ChoicesFile):
    """Reader of ``samples_*.jsonl`` of lm-evaluation-harness (``--log_samples``).

    Columns are ``logits``, the log-likelihoods of the choices, ``labels``, the position of the
    right choice, ``choices``, the number of choices, and members of the document, such as
    ``doc.subject``.
    """

    def __init__(self, file: InputFile) -> None:
        super().__init__(file, ("logits", "", "logits"), ("labels", "", "labels"))

    def _question(self, row: dict[str, Any]) -> dict[str, Any]:
        """Columns of a sample."""
        logits = [float(response[0]) for response in row["filtered_resps"]]
        count, target = len(logits), str(row["target"]).strip()
        texts = [str(row[f"arguments.gen_args_{i}"]["arg_1"]).strip() for i in range(count)]
        named = [texts.index(target)] if target in texts else []
        numbered = [int(target)] if target.isdecimal() and int(target) < count else []
        if not (candidates := numbered + named):
            raise ValueError(f"the target {target[:60]!r} is none of its {count} choices")
        # "2" may be a number or a text.  The accuracy says whether the likeliest choice is right,
        # and so tells which of two candidates is meant.
        likeliest = logits.index(max(logits))
        right = row.get("acc") == 1.0
        fitting = [label for label in candidates if (label == likeliest) == right]
        label = (fitting or candidates)[0]
        document = {
            name: value
            for name, value in row.items()
            if name.startswith("doc.") and isinstance(value, str | int | float)
        }
        return {"logits": self._padded(logits), "labels": label, "choices": count, **document}
