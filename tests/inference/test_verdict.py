"""The verdict: it follows from all numbers of a result, and never contradicts its table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import calibscale as cs
from calibscale.inference.evidence import interval_p_value
from calibscale.inference.verdict import judgement_of_evaluation
from calibscale.inference.verdict_sentences import sentence_of_ranking
from calibscale.results.estimate import POPULATION, THIS_N, Estimate, Floor, Interval
from calibscale.results.evaluation_results import Evaluation
from calibscale.results.source_rows import ImpossibleRows
from calibscale.results.verdict_results import Judgement

GAP, ECE, TCE2, JKCE = "confidence_gap", "ece", "tce2_debiased", "jkce"


def _interval(low: float, high: float, covers: str = POPULATION) -> Interval:
    return Interval(low, high, 0.95, "weighted_counts", 0, (high - low) / 4, covers)


def _estimate(
    name: str,
    value: float,
    *ends: float,
    notion: str = "top_label",
    floor: tuple[float, float, float] | None = None,
    covers: str = POPULATION,
    **details: Any,
) -> Estimate:
    return Estimate(
        name,
        notion,
        value,
        squared=name in (TCE2, JKCE),
        n=5000,
        details=details,
        interval=_interval(*ends, covers) if ends else None,
        floor=None if floor is None else Floor(floor[0], floor[1], 0.95, floor[2]),
    )


def _result(*estimates: Estimate, n: int = 5000, **settings: Any) -> Evaluation:
    source = {"name": "rows", "kind": "probabilities", "rows": n, "weighted": False}
    source |= settings.pop("source", {})
    return Evaluation(
        estimates=estimates,
        reliability=None,
        n=n,
        n_unlabelled=0,
        dropped={},
        source=source,
        seconds=0.0,
        versions={},
        parameters={},
        **settings,
    )


def _judged(*estimates: Estimate, negligible: float = 0.01, **settings: Any) -> Judgement:
    judgement = judgement_of_evaluation(_result(*estimates, **settings), negligible=negligible)
    assert judgement is not None
    return judgement


# ---------------------------------------------------------------- sentences


@pytest.mark.parametrize(
    ("gap", "message"),
    [
        (
            (0.147, 0.139, 0.155),
            "Overconfident by 14.7 points (95 % interval 13.9 to 15.5), more "
            "than chance explains (p < 0.001).",
        ),
        (
            (-0.032, -0.040, -0.024),
            "Underconfident by 3.2 points (95 % interval 2.4 to 4.0), "
            "more than chance explains (p < 0.001).",
        ),
        (
            (0.012, 0.00004, 0.024),
            "Overconfident by 1.200 points (95 % interval 0.004 to 2.400), "
            "more than chance explains (p = 0.049).",
        ),
        (
            (0.00044, 0.00041, 0.00047),
            "Real but small: overconfident by 0.0440 points (95 % "
            "interval 0.0410 to 0.0470), more than chance explains (p < 0.001); less than 1 point.",
        ),
    ],
    ids=["over", "under", "barely", "small"],
)
def test_verdict__of_a_gap_that_excludes_0(gap: tuple[float, ...], message: str) -> None:
    assert _judged(_estimate(GAP, *gap)).sentence == message


@pytest.mark.parametrize(
    ("gap", "source", "message"),
    [
        ((0.044, 0.0385, 0.0495), {}, "Predicts the event too often by 4.4 points"),
        (
            (-0.044, -0.0495, -0.0385),
            {"class_names": ["no", "fraud"]},
            "Predicts “fraud” too rarely by 4.4 points",
        ),
    ],
)
def test_verdict__of_two_classes_names_the_event(gap: Any, source: Any, message: str) -> None:
    sentence = _judged(_estimate(GAP, *gap, notion="positive"), source=source).sentence
    assert sentence.startswith(message + " (")


def test_verdict__of_errors_that_cancel_cites_their_size() -> None:
    gap = _estimate(GAP, 0.001, -0.004, 0.007)
    judged = _judged(gap, _estimate(ECE, 0.03, 0.02, 0.04), _estimate(TCE2, 0.0, 0.0, 1.0))
    assert judged.sentence == (
        "Miscalibrated by 3.0 points though right on average (ece, 95 % interval 2.0 to 4.0), "
        "more than chance explains (p < 0.001, adjusted for 3 numbers)."
    )
    assert judged.size is not None
    assert judged.size.estimator == "ece"


def test_verdict__prefers_an_error_more_than_twice_the_gap() -> None:
    gap, error = _estimate(GAP, 0.004, 0.002, 0.006), _estimate(ECE, 0.08, 0.07, 0.09)
    assert _judged(gap, error).sentence.startswith("Miscalibrated by 8.0 points (ece")
    assert _judged(gap, _estimate(ECE, 0.005, 0.003, 0.007)).sentence.startswith("Real but small: ")


def test_verdict__states_the_size_that_would_have_been_seen() -> None:
    gap = _estimate(GAP, 0.001, -0.004, 0.007)
    within = _judged(gap)
    # half the interval, 0.0055, times (1.960 + 0.842) / 1.960
    assert within.detectable == pytest.approx(0.0055 * 1.4294, rel=1e-3)
    assert within.sentence == (
        "No miscalibration shown: chance explains confidence_gap (p = 0.7); an average error of "
        "0.79 points or more would be seen in 80 % of such data sets."
    )
    few = _judged(_estimate(GAP, -0.05, -0.31, 0.22), n=12)
    assert few.state == "few_rows"
    assert few.sentence == (
        "Too few rows to tell (12): only an average error of 38 points or more would be seen in "
        "80 % of such data sets."
    )


def test_verdict__needs_a_number_that_says_something() -> None:
    for estimates in ((_estimate(GAP, 0.147),), (_estimate("accuracy", 0.9, 0.8, 1.0),), ()):
        assert judgement_of_evaluation(_result(*estimates)) is None
    empty = _judged(Estimate(GAP, "top_label", None, reason="no rows"), n=0)
    assert empty.sentence == (
        "Nothing to judge: there are no rows with a label and a positive weight."
    )


# ---------------------------------------------------------------- cases V1 to V11


def _swapped(n: int = 5000) -> cs.ArraySource:
    """Three classes. The two less probable ones are swapped in the predictions."""
    rng = np.random.default_rng(1)
    q = rng.dirichlet(np.ones(3), n)
    y = (q.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    order, rows = np.argsort(q, axis=1), np.arange(n)
    p = q.copy()
    p[rows, order[:, 0]], p[rows, order[:, 1]] = q[rows, order[:, 1]], q[rows, order[:, 0]]
    return cs.from_arrays(probabilities=p, labels=y)


@pytest.mark.long
def test_verdict__reads_every_number() -> None:  # V1
    result = cs.evaluate(_swapped(), interval="jackknife")
    assert result["ece"].interval is not None
    assert result["ece"].interval.low == 0.0
    assert result.verdict is not None
    assert result.verdict.startswith("Miscalibrated by 21 points though the top label is right")


@pytest.mark.long
def test_verdict__of_evaluate_and_check_agree_on_a_small_error() -> None:  # V2
    rng = np.random.default_rng(5)
    p = rng.random(200_000)
    y = (rng.random(len(p)) < np.clip(p + 0.005, 0, 1)).astype(int)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    estimators = ["confidence_gap", "ece", "tce2_debiased"]
    evaluated = cs.evaluate(source, estimators, interval="jackknife")
    checked = cs.check(source, n_replicates=99)
    for result in (evaluated, checked):
        assert result.verdict is not None
        assert result.verdict.startswith("Real but small: predicts the event too rarely by 0.")
    larger = cs.evaluate(source, estimators, interval="jackknife", negligible=0.001)
    assert larger.judgement is not None
    assert larger.judgement.state == "miscalibrated"


def test_verdict__is_not_that_nothing_is_shown_above_the_noise() -> None:  # V3
    gap = _estimate(GAP, 0.001, -0.004, 0.007)
    noisy = _judged(gap, _estimate(ECE, 0.03, 0.0, 0.04, floor=(0.02, 0.028, 0.028)))
    assert noisy.state == "unclear"
    assert noisy.sentence == (
        "No clear evidence of miscalibration: ece is beyond chance taken alone; adjusted for 2 "
        "numbers, p = 0.056."
    )


@pytest.mark.long
def test_verdict__names_impossible_labels(rng: np.random.Generator) -> None:  # V4
    p = rng.random(5000)
    y = (rng.random(5000) < p).astype(int)
    p[17:27], y[17:27] = 0.0, 1
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    first = (
        "Miscalibrated: 10 of 5,000 labels have the predicted probability 0 (first row 17), which "
        "calibrated predictions exclude."
    )
    results = (
        cs.evaluate(source, ["confidence_gap", "ece"], interval="jackknife"),
        cs.check(source, n_replicates=19),
        cs.calibration_test(source, "ece", n_replicates=19),
    )
    for result in results:
        assert result.verdict is not None
        assert result.verdict.startswith(first)
        assert result.impossible == ImpossibleRows(10, 17)
        assert result.to_dict()["impossible"] == {"count": 10, "first_row": 17}
    assert "labels have the predicted probability 0" in " ".join(str(results[0]).split())
    ranking = cs.rank({"model": source, "other": source}, by="brier")
    assert ranking.verdict is not None
    assert "model gives 10 labels the probability 0" in ranking.verdict


@pytest.mark.parametrize("kind", ["logits", "float32", "blocks", "soft", "histogram", "ordinal"])
def test_impossible_labels__are_counted_for_all_kinds(kind: str) -> None:
    q, y = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.25, 0.75]]), np.array([1, 0, 1, -1])
    options: dict[str, Any] = {}
    if kind == "logits":
        with np.errstate(divide="ignore"):
            source = cs.from_arrays(logits=np.log(q), labels=y)
    elif kind == "soft":
        source = cs.from_arrays(probabilities=q[:3], labels=[[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]])
    elif kind in ("histogram", "ordinal"):
        edges = {"histogram": "histogram(edges=[0, 1, 2, 3])", "ordinal": "ordinal(classes=3)"}
        mass = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
        source = cs.from_arrays(predictions=mass, forecast=edges[kind], labels=[2, 1, 1])
    else:
        options = {"block_rows": 1} if kind == "blocks" else {}
        dtype = np.float32 if kind == "float32" else np.float64
        source = cs.from_arrays(probabilities=q.astype(dtype), labels=y)
    name = "crps" if kind in ("histogram", "ordinal") else "brier"
    assert cs.evaluate(source, name, **options).impossible == ImpossibleRows(1, 0)


@pytest.mark.long
def test_verdict__of_rare_events_uses_equal_mass() -> None:  # V5
    rng = np.random.default_rng(3)
    p = rng.beta(1.0, 75.0, 20_000)
    y = (rng.random(len(p)) < p).astype(int)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    result = cs.evaluate(source)
    assert "ece(edges='equal-mass')" in [estimate.estimator for estimate in result]
    assert result.verdict is not None
    note = "99.4 % of the weight lies in one equal-width bin of ece, so equal-mass bins are judged"
    assert note in result.verdict
    alone = cs.evaluate(source, "ece")
    assert alone.verdict is not None
    assert "use edges='equal-mass'" in alone.verdict


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("brier", "a has the smallest Brier score of 2 models"),
        ("nll", "a has the smallest log loss of 2 models"),
        ("tce2_debiased", "a is the best calibrated of 2 models by tce2_debiased"),
    ],
)
def test_verdict__of_a_ranking_names_what_it_ranks_by(text: str, says: str) -> None:  # V6
    rng = np.random.default_rng(2)
    p = rng.random(2000)
    y = (rng.random(2000) < p).astype(int)
    models = {
        name: cs.from_arrays(probabilities=np.clip(p + shift, 0.01, 0.99), labels=y, binary=True)
        for name, shift in {"a": 0.0, "b": 0.25}.items()
    }
    ranking = cs.rank(models, by=text)
    assert ranking.verdict is not None
    assert ranking.verdict.startswith(says)
    assert ranking.verdict == sentence_of_ranking(text, ranking.models, ranking.differences)
    assert ranking.verdict in " ".join(str(ranking).split())


def test_verdict__of_forecasts_names_the_coverage() -> None:  # V7
    coverage = _estimate(
        "coverage", 0.802, 0.79, 0.814, notion="forecast", level=0.9, expected=0.899
    )
    judged = _judged(coverage, source={"forecast": {"kind": "normal"}})
    assert judged.sentence == (
        "Overconfident: 80.2 % of the outcomes lie in the 90 % intervals (expected 89.9 %), more "
        "than chance explains (p < 0.001)."
    )


@pytest.mark.parametrize(("factor", "word"), [(0.6, "Overconfident: "), (1.6, "Underconfident: ")])
def test_verdict__of_the_test_of_the_coverage_has_its_direction(factor: float, word: str) -> None:
    rng = np.random.default_rng(4)
    mean, scale = rng.normal(size=(2, 800)) * [[1.0], [0.0]] + [[0.0], [1.0]]
    source = cs.from_arrays(
        predictions=(mean, factor * scale), forecast="normal", labels=mean + rng.normal(size=800)
    )
    result = cs.calibration_test(source, "coverage", n_replicates=99)
    share = 100 * np.mean(np.abs(source.labels - mean) <= 1.6449 * factor)
    assert result.verdict is not None
    assert result.verdict.startswith(f"{word}{share:.1f} % of the outcomes lie in the 90 % inter")


def test_verdict__names_a_larger_error_of_other_classes() -> None:
    """V1 with a temperature: the gap is 3 points, and two classes are exchanged."""
    gap = _estimate(GAP, 0.03, 0.02, 0.04)
    top = _estimate(ECE, 0.035, 0.025, 0.045)
    classes = _estimate("cwce2", 0.05, notion="class_wise", floor=(0.001, 0.002, 1e-4))
    assert _judged(gap, top).sentence.startswith("Overconfident by 3.0 points")
    assert _judged(gap, top, classes).sentence.startswith("Miscalibrated by 22 points (root of c")


def test_verdict__of_few_draws_asks_for_more() -> None:
    p = np.linspace(0.05, 0.95, 400)
    y = (np.random.default_rng(0).random(400) < 0.3).astype(int)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    few = cs.calibration_test(source, "tce2", n_replicates=9)
    assert few.judgement is not None
    assert few.judgement.state == "unclear"
    assert few.judgement.sentence == (
        "No verdict from so few draws: tce2 has the smallest p-value that they can give; use more "
        "(n_replicates=, --replicates)."
    )
    many = cs.calibration_test(source, ["ece", "tce2", "tce2_debiased", "jkce", "ckce"])
    assert many.judgement is not None  # 199 draws that all tests share are enough
    assert many.judgement.miscalibrated


def test_verdict__of_other_levels_stays_at_5_percent() -> None:
    wide = Interval(0.001, 0.05, 0.8, "weighted_counts", 0, 0.02, POPULATION)
    estimate = Estimate(GAP, "top_label", 0.025, interval=wide, n=500)
    judged = _judged(estimate)
    assert judged.state == "unclear"
    assert "beyond chance taken alone (p = 0.18" in judged.sentence


@pytest.mark.parametrize("size", [1, -0.1, np.nan, "1%"])
def test_negligible__is_a_size_below_1(size: Any) -> None:
    source = cs.from_arrays(probabilities=[0.5] * 4, labels=[0, 1, 0, 1], binary=True)
    for verb in (cs.evaluate, cs.calibration_test, cs.check):
        with pytest.raises(cs.OptionError, match=r"negligible must be in \[0, 1\)"):
            verb(source, negligible=size)


def test_verdict__ignores_intervals_of_an_expectation_at_this_n() -> None:  # V11
    gap = _estimate(GAP, 0.001, -0.004, 0.007)
    clustered = _estimate(ECE, 0.03, 0.02, 0.04, covers=THIS_N)
    assert _judged(gap, clustered).state == "within_chance"


# ---------------------------------------------------------------- headline and table agree

_NAMES = (GAP, ECE, TCE2, JKCE, "smooth_ece", "mce", "cwce2", "quantile_ece", "coverage", "brier")


def _random_estimate(rng: np.random.Generator) -> Estimate:
    """Any combination of a value, an interval and a noise floor that an estimate may have."""
    name = str(rng.choice(_NAMES))
    scale = 10.0 ** rng.uniform(-4, -0.5)
    value = scale * rng.normal() if name in (GAP, TCE2, JKCE) else scale * abs(rng.normal())
    if name == "coverage":
        value = rng.uniform(0.7, 1.0)
    ends: tuple[float, ...] = ()
    if rng.random() < 0.7:
        below, above = scale * rng.exponential(size=2)
        low = value - below
        if name not in (GAP, "coverage"):
            low = max(low, 0.0)
        ends = (low, max(value, 0.0) + above)
    floor = None
    if rng.random() < 0.5 and name not in (GAP, TCE2, JKCE, "coverage", "brier"):
        mean = scale * rng.exponential()
        high = mean * rng.uniform(1.0, 2.0)
        p = rng.uniform(0.05, 1.0) if value <= high else rng.uniform(1e-4, 0.05)
        floor = (mean, high, p)
    details = {"level": 0.9, "expected": 0.9} if name == "coverage" else {}
    covers = POPULATION if rng.random() < 0.8 else THIS_N
    notion = "class_wise" if name == "cwce2" else "top_label"
    return _estimate(name, value, *ends, notion=notion, floor=floor, covers=covers, **details)


def _shown(estimate: Estimate) -> bool:
    """Whether a reader sees the number beyond chance in the table."""
    if estimate.estimator == "brier" or estimate.value is None:
        return False
    null = 0.9 if estimate.estimator == "coverage" else 0.0
    interval, floor = estimate.interval, estimate.floor
    excluded = (
        interval is not None
        and interval.covers == POPULATION
        and (interval.low > null or interval.high < null)
    )
    noisy = floor is not None and floor.p_value <= 0.05
    return excluded or noisy


@pytest.mark.long
def test_verdict__never_contradicts_the_table() -> None:
    rng = np.random.default_rng(32)
    states = set()
    for _ in range(2000):
        estimates = [_random_estimate(rng) for _ in range(rng.integers(1, 8))]
        groups = {}
        if rng.random() < 0.3:
            groups = {float(g): tuple(_random_estimate(rng) for _ in range(2)) for g in range(3)}
        impossible = ImpossibleRows(3, 7) if rng.random() < 0.1 else None
        result = _result(
            *estimates, groups=groups, group_by="region" if groups else None, impossible=impossible
        )
        judged = judgement_of_evaluation(result)
        everything = [*estimates, *(e for members in groups.values() for e in members)]
        shown = [e for e in everything if _shown(e)]
        if judged is None:
            assert not shown
            continue
        states.add(judged.state)
        says_nothing = "No miscalibration shown" in judged.sentence
        says_wrong = judged.sentence.startswith(
            ("Miscalibrated", "Overconfident", "Underconfident", "Predicts", "Where", "Real")
        )
        if judged.state in ("within_chance", "few_rows"):
            assert not shown, judged.sentence
        assert says_nothing == (judged.state == "within_chance")
        assert says_wrong == judged.miscalibrated
        if judged.state in ("miscalibrated", "small"):
            assert shown, judged.sentence
            assert judged.p_value is not None
            assert judged.p_value <= 0.05 + 1e-12
        if judged.state == "small":
            assert judged.size is None or judged.size.largest < 0.01
        if judged.p_value is not None and "p = " in judged.sentence:
            cited = judged.sentence.partition("p = ")[2].split(")")[0].split(",")[0].rstrip(".")
            # sentences round p-values
            assert float(cited) == pytest.approx(judged.p_value, rel=0.06)
        assert (judged.state == "refuted") == (impossible is not None)
        gaps = [e for e in estimates if e.estimator == GAP]
        if judged.sentence.startswith(("Overconfident by", "Underconfident by")):
            over = judged.sentence.startswith("Over")
            assert any(_shown(e) and e.value is not None and (e.value > 0) == over for e in gaps)
    assert states == {"within_chance", "few_rows", "unclear", "miscalibrated", "small", "refuted"}


def test_interval_p_value__is_5_percent_at_the_end_of_the_interval() -> None:
    for method, parts in (("weighted_counts", 0), ("jackknife", 20)):
        interval = Interval(0.1, 0.3, 0.95, method, parts, 0.05, POPULATION)
        assert interval_p_value(0.2, interval, 0.1) == 1.0  # an end that is the null value
        assert interval_p_value(0.2, interval, 0.1 - 1e-9) == pytest.approx(0.05, rel=1e-6)
        assert interval_p_value(0.2, interval, 0.3 + 1e-9) == pytest.approx(0.05, rel=1e-6)
        inside = interval_p_value(0.2, interval, 0.15)
        assert 0.3 < inside < 0.4  # one half of 1.96 standard errors: p = 0.327


def test_verdict__a_group_is_named_only_if_its_error_exceeds_the_error_of_all_rows() -> None:
    of_all_rows = (_estimate(GAP, 0.02, 0.018, 0.022), _estimate(ECE, 0.022, 0.020, 0.025))
    alike = (_estimate(GAP, 0.021, 0.017, 0.025), _estimate(ECE, 0.024, 0.019, 0.028))
    opposed = (_estimate(GAP, -0.09, -0.1, -0.08), _estimate(ECE, 0.2, 0.1, 0.3))
    groups = {1.0: alike, 2.0: alike}
    sentence = _judged(*of_all_rows, groups=groups, group_by="channel").sentence
    assert sentence == (
        "Overconfident by 2.00 points (95 % interval 1.80 to 2.20), more than chance explains "
        "(p < 0.001, adjusted for 6 numbers)."
    )
    # the group is compared by the number that is cited for all rows
    sentence = _judged(*of_all_rows, groups=groups | {3.0: opposed}, group_by="channel").sentence
    assert sentence.endswith(
        "; the most where channel\u00a0=\u00a03, 9.0 points by confidence_gap."
    )
    # without an interval, nothing says that the group differs
    bare = (_estimate(ECE, 0.2, floor=(0.02, 0.03, 0.001)),)
    assert "channel" not in _judged(*of_all_rows, groups={3.0: bare}, group_by="channel").sentence


@pytest.mark.long
@pytest.mark.parametrize("planted", [False, True])
def test_groups__are_named_only_if_worse_than_all_rows(planted: bool) -> None:
    rng = np.random.default_rng(5)
    n, small = 12_000, 300
    p = rng.uniform(0.05, 0.95, n)
    region = np.where(np.arange(n) < small, "small", np.where(np.arange(n) % 2, "east", "west"))
    shift = np.where((region == "small") & planted, 0.35, 0.1)
    y = (rng.random(n) < np.clip(p - shift, 0, 1)).astype(int)
    source = cs.from_arrays(
        probabilities=p, labels=y, binary=True, covariates=pd.DataFrame({"region": region})
    )
    result = cs.evaluate(source, ["confidence_gap", "ece"], group_by="region", interval="jackknife")
    judgement = judgement_of_evaluation(result)
    assert judgement is not None
    named = "the most where region\u00a0=\u00a0small" in judgement.sentence
    assert named == planted, judgement.sentence


@pytest.mark.long
def test_diagram__of_rare_events_has_equal_mass() -> None:  # V5
    rng = np.random.default_rng(3)
    p = rng.beta(1.0, 75.0, 20_000)
    y = (rng.random(len(p)) < p).astype(int)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    diagram = cs.evaluate(source).reliability
    assert diagram is not None
    assert [bin.count for bin in diagram.curve.filled] == pytest.approx(
        [20_000 / 15] * 15, rel=0.05
    )
    assert diagram.curve.ece == cs.evaluate(source, "ece(edges='equal-mass')")["ece"].value
