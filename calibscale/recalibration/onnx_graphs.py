"""ONNX graphs of recalibrations that are formulas of the predicted probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import missing_package, require

OPSET = 17  # of ONNX 1.12, the first with all operators in double precision
DTYPES = ("float32", "float64")
_LOWEST_POWER = -300.0  # probabilities are at least e to this power, as in `class_losses`
_CLASSES_AXIS = 1


class OnnxScore:
    """Predictions of K classes (n, K) in a graph, and operations on values of the graph.

    Values are names.  All arithmetic is in double precision, whatever the type of the input.

    Attributes
    ----------
    is_logit : bool
        Whether the input has logits, which must be finite, not probabilities.
    """

    def __init__(self, classes: int, is_logit: bool, dtype: str = "float32") -> None:
        require(dtype in DTYPES, f"dtype must be one of {', '.join(DTYPES)}", dtype)
        try:
            import onnx
        except ImportError as error:
            raise missing_package("to_onnx", "onnx", "onnx") from error
        self._onnx = onnx
        self.is_logit = is_logit
        self._classes = classes
        self._type = getattr(onnx.TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}[dtype])
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._input_name = "logits" if is_logit else "probabilities"
        self._values = self.of("Cast", self._input_name, to=onnx.TensorProto.DOUBLE)

    # ---------------------------------------------------------------- operations

    def of(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Name of the result of an operator."""
        name = f"v{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, value: Any) -> str:
        """Name of a constant in double precision."""
        name = f"c{len(self._constants)}"
        array = np.asarray(value, np.float64)
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def integers(self, value: Any) -> str:
        """Name of a constant of integers."""
        name = f"c{len(self._constants)}"
        array = np.asarray(value, np.int64)
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def times(self, value: str, factor: Any) -> str:
        return self.of("Mul", value, self.constant(factor))

    def plus(self, value: str, term: Any) -> str:
        return self.of("Add", value, self.constant(term))

    def at_least(self, value: str, limit: float) -> str:
        return self.of("Max", value, self.constant(limit))

    def softmax(self, logits: str) -> str:
        """Softmax over the classes, with all probabilities above 0."""
        largest = self.of("ReduceMax", logits, axes=[_CLASSES_AXIS], keepdims=1)
        relative = self.at_least(self.of("Sub", logits, largest), _LOWEST_POWER)
        return self.of("Softmax", relative, axis=_CLASSES_AXIS)

    def centred(self, value: str) -> str:
        """Value minus its mean over the classes."""
        mean = self.of("ReduceMean", value, axes=[_CLASSES_AXIS], keepdims=1)
        return self.of("Sub", value, mean)

    def softplus(self, value: str) -> str:
        """log(1 + exp(z)), without an exponential that overflows."""
        small = self.of("Exp", self.of("Neg", self.of("Abs", value)))
        return self.of("Add", self.at_least(value, 0.0), self.of("Log", self.plus(small, 1.0)))

    def borders_below(
        self,
        borders: Floats | Sequence[Floats],
        values: str,
        strictly: bool = False,
        group: str | None = None,
    ) -> str:
        """Number of increasing borders at or below values (n, 1), or below them if `strictly`.

        With the `group` of each value (n, 1), every group has its own borders.  A binary search,
        which needs no memory for pairs of rows and borders.
        """
        tables = [np.asarray(borders)] if group is None else [np.asarray(own) for own in borders]
        step = 1 << max(max(map(len, tables)).bit_length() - 1, 0)
        width = 2 * step - 1
        # Finite values are below the borders that are added, which are therefore never counted.
        table = self.constant(padded(tables, width, np.inf).ravel())
        first = None if group is None else self.of("Mul", group, self.integers(width))
        operator = "Less" if strictly else "LessOrEqual"
        place: str | None = None  # number of borders that are known to be below
        while step:
            last = self.integers([[step - 1]])
            if place is not None:
                last = self.of("Add", place, last)
            if first is not None:
                last = self.of("Add", first, last)
            is_below = self.of(operator, self.of("Gather", table, last), values)
            integer = self.of("Cast", is_below, to=self._onnx.TensorProto.INT64)
            taken = self.of("Mul", integer, self.integers(step))
            place = taken if place is None else self.of("Add", place, taken)
            step //= 2
        assert place is not None  # there is at least one step
        return place

    def entries(self, table: Floats, places: str) -> str:
        """Entries of a table (m,) at places (n, 1)."""
        return self.of("Gather", self.constant(table), places)

    @property
    def top(self) -> str:
        """Class of the largest prediction of each row (n, 1), the first of several."""
        return self.of("ArgMax", self._values, axis=_CLASSES_AXIS, keepdims=1)

    def with_probability(self, chosen: str, probability: str) -> str:
        """Predictions (n, K) with the probability of a chosen class (n, 1).

        The other classes keep their proportions, and get equal parts if they have no probability.
        """
        is_chosen = self.of("Equal", chosen, self.integers(np.arange(self._classes)[None]))
        nothing, everything = self.constant(0.0), self.constant(1.0)
        others = self.of("Where", is_chosen, nothing, self.probabilities)
        axes = self.integers([_CLASSES_AXIS])
        is_empty = self.of("Equal", self.of("ReduceSum", others, axes, keepdims=1), nothing)
        equal = self.of("Where", is_chosen, nothing, everything)
        others = self.of("Where", is_empty, equal, others)
        left = self.of("Sub", everything, probability)
        share = self.of("Div", left, self.of("ReduceSum", others, axes, keepdims=1))
        return self.of("Where", is_chosen, probability, self.of("Mul", others, share))

    def with_the_other(self, probability: str) -> str:
        """Probabilities (n, 2) of both classes, by the probability of class 1 (n, 1)."""
        other = self.of("Sub", self.constant(1.0), probability)
        return self.of("Concat", other, probability, axis=_CLASSES_AXIS)

    def of_two_classes(self, log_odds: str) -> str:
        """Probabilities (n, 2) of log-odds (n, 1)."""
        # A runtime may compute a sigmoid as 1 − p, which loses the digits of a small p.
        return self.softmax(self.of("MatMul", log_odds, self.constant([[0.0, 1.0]])))

    # ---------------------------------------------------------------- the predictions

    @property
    def probabilities(self) -> str:
        """Predicted probabilities (n, K)."""
        if not self.is_logit:
            return self._values
        return self.of("Softmax", self._values, axis=_CLASSES_AXIS)

    @property
    def probability(self) -> str:
        """Predicted probability of class 1 of two (n, 1)."""
        return self.of("MatMul", self.probabilities, self.constant([[0.0], [1.0]]))

    def relative_logits(self, clip: float) -> str:
        """Logits, or logarithms of probabilities raised to at least `clip` (n, K)."""
        if self.is_logit:
            return self._values
        return self.of("Log", self.at_least(self._values, clip))

    def log_probabilities(self, clip: float) -> str:
        """Logarithms of probabilities raised to at least `clip` (n, K)."""
        if not self.is_logit:
            return self.relative_logits(clip)
        logarithms = self.of("LogSoftmax", self._values, axis=_CLASSES_AXIS)
        return self.at_least(logarithms, float(np.log(clip)))

    def log_odds(self, clip: float) -> str:
        """Log-odds of class 1 of two (n, 1)."""
        return self.of("MatMul", self.relative_logits(clip), self.constant([[-1.0], [1.0]]))

    # ---------------------------------------------------------------- the model

    def model(self, probabilities: str, description: str) -> Any:
        """ONNX model that returns these probabilities."""
        helper = self._onnx.helper
        output = "recalibrated"
        nodes = [
            *self._nodes,
            helper.make_node("Cast", [probabilities], [output], to=self._type),
        ]
        shape = ["rows", self._classes]
        graph = helper.make_graph(
            nodes,
            "recalibration",
            [helper.make_tensor_value_info(self._input_name, self._type, shape)],
            [helper.make_tensor_value_info(output, self._type, shape)],
            self._constants,
            doc_string=description,
        )
        # The oldest representation of this operator set, so that older runtimes read the file.
        model = helper.make_model(
            graph,
            producer_name="calibscale",
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=8,
        )
        self._onnx.checker.check_model(model, full_check=True)
        return model


def padded(rows: Sequence[Floats], width: int, value: float) -> Floats:
    """Rows of a table (n, width), which end with a value where they are shorter."""
    table = np.full((len(rows), width), value)
    for out, row in zip(table, rows, strict=True):
        out[: len(row)] = row
    return table


def linear_map(score: OnnxScore, inputs: str, coefficients: Floats) -> str:
    """η (n, K) of inputs (n, K) by coefficients (r, K): slopes, or a matrix, and intercepts."""
    if len(coefficients) == 2:
        return score.plus(score.times(inputs, coefficients[0]), coefficients[1])
    product = score.of("MatMul", inputs, score.constant(coefficients[:-1]))
    return score.plus(product, coefficients[-1])


def piecewise_polynomial(score: OnnxScore, value: str, starts: Floats, pieces: Floats) -> str:
    """Polynomials of values (n, 1) minus the start of their piece.

    `pieces` (degree + 1, m + 1) are coefficients, of the highest power first, below the first of m
    increasing starts and from each of them on.  The piece below begins at the first start, too.
    """
    place = score.borders_below(starts, value)
    first = score.entries(np.append(starts[0], starts), place)
    step = score.of("Sub", value, first)
    highest, *others = pieces
    result = score.entries(highest, place)
    # Horner's method.
    for coefficients in others:
        product = score.of("Mul", result, step)
        result = score.of("Add", product, score.entries(coefficients, place))
    return result
