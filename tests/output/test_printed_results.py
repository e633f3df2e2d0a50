"""Documents of live results and of results read from JSON have the same texts."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from io import StringIO

import numpy as np
import pytest

import calibscale as cs
from calibscale.auditing.audit import audit
from calibscale.output.documents.articles import article_of
from calibscale.output.documents.printed_results import printed_result
from calibscale.output.plots import plot_reliability
from calibscale.output.reading import read
from calibscale.output.text import SafeConsole, as_text, print_article
from calibscale.results.declarations import Declared, Hidden, Json
from calibscale.results.levels import Level
from tests.support.report_results import rows


def _extreme():
    """Rows with probabilities that are exactly 0 and 1, and labels that refute some of them."""
    rng = np.random.default_rng(7)
    z = 8 * rng.normal(size=200) * rng.choice([0.2, 1.0, 500.0], 200)
    return cs.from_arrays(
        logits=z,
        labels=rng.random(200) < 0.5,
        binary=True,
        covariates=rng.random((200, 1)),
        covariate_names=("age",),
    )


def _softer(shift=0.0):
    """The labels of `_extreme` with probabilities that are neither 0 nor 1."""
    p = np.random.default_rng(8).uniform(0.2, 0.6, 200) + shift
    return cs.from_arrays(probabilities=p, labels=_extreme().labels, binary=True)


RESULTS = {
    "evaluation": lambda: cs.evaluate(_extreme(), interval="jackknife"),
    "groups": lambda: cs.evaluate(rows(200), ["ece", "ckce"], group_by="region"),
    "without rows": lambda: cs.evaluate(
        cs.from_arrays(probabilities=[0.2], labels=[-1], binary=True), ["ece", "nll"]
    ),
    "check": lambda: cs.check(_extreme(), n_replicates=19),
    "reliability": lambda: cs.reliability(rows(200), group_by="region"),
    "classes": lambda: cs.reliability(rows(200), notion="class_wise"),
    "test": lambda: cs.calibration_test(rows(200), "ece", n_replicates=19),
    "tests": lambda: cs.calibration_test(rows(200), ["ece", "kce"], n_replicates=19),
    "selection": lambda: cs.select(rows(200), "top_label", ["bins", "ukkr"], nested=True),
    "bias": lambda: cs.local_bias(_extreme(), ("age",), n_replicates=19),
    "ranking": lambda: cs.rank({"a": rows(200), "b": rows(200, 1)}, subset_size=50, trials=5),
    "murphy": lambda: cs.murphy_diagram({"a": _extreme(), "b": _softer()}, thresholds=7),
    "concentration": lambda: cs.concentration_curve(_softer()),
    "double lift": lambda: cs.double_lift(_softer(), _softer(0.3), names=("a", "b"), bins=4),
    "label shift": lambda: cs.label_shift(_softer(), _softer(0.1), "bbse"),
    "audit": lambda: audit(_extreme(), ("age",), n_replicates=19, recalibrate=("platt",)),
    "power": lambda: cs.power(
        _extreme(), cs.Miscalibration(0.2), "ece", max_rows=400, trials=10, n_replicates=19
    ),
    "recalibration": lambda: cs.recalibrate(rows(200), "temperature"),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", RESULTS)
def test_documents__are_the_same_when_read_from_json(kind):
    result = RESULTS[kind]()
    value = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    out = StringIO()
    console = SafeConsole(file=out, color_system=None, highlight=False, force_jupyter=False)
    print_article(article_of(read(value)), console)
    assert out.getvalue().rstrip("\n") == as_text(result)


def test_read__restores_a_single_test_as_tests():
    tests = cs.calibration_test(rows(200), "ece", n_replicates=19)
    restored = read(json.loads(json.dumps(tests.to_dict())))
    assert isinstance(restored, cs.CalibrationTests)
    assert restored.results[0].p_value == tests.results[0].p_value
    assert restored.verdict == tests.verdict
    assert restored.to_dict() == tests.to_dict()


def test_read__keeps_the_verdict_of_a_version_without_judgements():
    value = json.loads(json.dumps(cs.evaluate(rows(200), "ece", interval="jackknife").to_dict()))
    del value["judgement"]
    value["verdict"] = "The sentence of an earlier version."
    restored = read(value)
    assert restored.verdict == "The sentence of an earlier version."
    assert article_of(restored).verdict == "The sentence of an earlier version"


def test_plot_reliability__draws_results_and_json_objects_alike():
    result = cs.reliability(rows(200), bins=5)
    drawn, restored = (
        [line.get_xydata().tolist() for line in plot_reliability(value).lines]
        for value in (result, result.to_dict())
    )
    assert drawn == restored


# ---------------------------------------------------------------- texts and numbers


@dataclass(frozen=True)
class Part(Declared):
    name: str
    value: float
    limit: float | None


@dataclass(frozen=True)
class Whole(Declared):
    parts: tuple[Part, ...]
    by_group: Hidden[dict[float, tuple[Part, ...]]]
    free: Json = field(default_factory=dict)


def test_printed_result__converts_texts_and_marks_missing_numbers():
    part = Part("a\nb", math.inf, math.nan)
    nested = Whole((part,), {Level(1.0, "c\nd"): (part,)}, {"e\nf": [np.float64("nan"), "g\nh"]})
    shown = printed_result(nested, lambda text: text.replace("\n", "|"))
    (printed,) = shown.parts
    assert printed.name == "a|b"
    # Numbers that are not finite are as in a result that is read from JSON.
    assert math.isnan(printed.value)
    assert printed.limit is None
    ((group, members),) = shown.by_group.items()
    assert group == 1.0
    assert group.name == "c|d"
    assert members[0].name == "a|b"
    assert shown.free == {"e|f": [None, "g|h"]}
    assert nested.parts[0].name == "a\nb"
