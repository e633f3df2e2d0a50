"""Running evaluation: the same numbers as `evaluate`, however rows are cut and merged."""

from __future__ import annotations

import pickle
from functools import reduce

import numpy as np
import pandas as pd
import pytest

from calibscale import (
    CKCE,
    Accumulator,
    InvalidDataError,
    Jackknife,
    OptionError,
    RandomFourier,
    evaluate,
    from_arrays,
)
from calibscale.errors import NoRowsError
from calibscale.estimators.known_estimators import ESTIMATORS
from calibscale.estimators.residual_tests import ResidualTest
from calibscale.evaluation import accumulator as module
from calibscale.predictions.claims import includes

ROWS, CLASSES = 5000, 4
FIXED = [  # every estimator of one pass, with bandwidths
    "accuracy",
    "brier",
    "nll",
    "confidence_gap",
    "ece",
    "ece(edges=equal-mass)",
    "mce",
    "smooth_ece",
    "tce2",
    "tce2_debiased",
    "tce2_kumar",
    "cwce2",
    "simplex_ece",
    "certified_l1",
    "certified_l2",
    "corp",
    "ecce_mad",
    "ecce_range",
    "ici",
    "cox_slope",
    "cox_intercept",
    "spiegelhalter",
    "atb",
    "atb_debiased",
    "murphy",
    "aurc",
    "brier_decomposition",
    "nll_decomposition",
    "ckce(features=20, bandwidth=0.4)",
    "ckce_centred(features=20, bandwidth=0.4)",
    "cmmd(features=20, bandwidth=0.4)",
    "jkce(features=20, bandwidth=0.4)",
    "jkce_biased(features=20, bandwidth=0.4)",
    "kce(notion=top_label, prediction_bandwidth=0.2)",
    "kce(method=features, n_features=20, prediction_bandwidth=0.3)",
    "klce(covariates=['age'], method=features, n_features=20, prediction_bandwidth=0.3, "
    "covariate_bandwidth=2)",
    "multicalibration(covariates=['region'])",
]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(ROWS, CLASSES))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    labels[rng.random(ROWS) < 0.01] = -1
    return {
        "logits": logits,
        "labels": labels,
        "weights": rng.gamma(2.0, size=ROWS),
        "covariates": np.column_stack([rng.integers(20, 80, ROWS), rng.integers(0, 3, ROWS)]),
    }


NAMES = ["age", "region"]


def accumulated(data, cuts, estimators, **settings):
    result = Accumulator(estimators, classes=CLASSES, covariate_names=NAMES, **settings)
    for start, stop in zip([0, *cuts], [*cuts, ROWS], strict=True):
        result.update(**{name: column[start:stop] for name, column in data.items()})
    return result


def table(result):
    groups = {str(key): estimates for key, estimates in (result.groups or {}).items()}
    return {
        (group, e.estimator): e.value
        for group, estimates in {"": result.estimates, **groups}.items()
        for e in estimates
    }


def test_fixed__has_every_estimator_of_one_pass():
    of_classes = {
        name
        for name, kind in ESTIMATORS.items()
        if includes(kind.judges, "classes")
        and not issubclass(kind, ResidualTest)  # cells of the data
    }
    assert {text.partition("(")[0] for text in FIXED} == of_classes


@pytest.mark.long
@pytest.mark.parametrize(
    ("recent", "group_by"),
    [(2**16, None), pytest.param(900, "region", marks=pytest.mark.slow)],
)
def test_compute__equals_evaluate(data, monkeypatch, recent, group_by):
    monkeypatch.setattr(module, "_RECENT_ROWS", recent)
    source = from_arrays(**data, covariate_names=NAMES)
    expected = evaluate(source, FIXED, group_by=group_by, floor=False)
    cuts = np.sort(np.random.default_rng(1).integers(0, ROWS, 12))  # some batches may be empty
    running = accumulated(data, [*cuts, cuts[-1]], FIXED, group_by=group_by)
    result = pickle.loads(pickle.dumps(running)).compute()
    assert table(result) == pytest.approx(table(expected), rel=1e-12)
    assert (result.n, result.n_unlabelled, result.source["rows"]) == (
        expected.n,
        expected.n_unlabelled,
        ROWS,
    )
    assert running.rows == ROWS
    assert f"rows={ROWS}" in repr(running)
    running.reset(keep_bandwidths=True)  # of klce: centres of the covariates
    parts = [pickle.loads(pickle.dumps(running)) for _ in range(3)]
    for k, part in enumerate(parts):
        part.update(**{name: column[k::3] for name, column in data.items()})
    merged = reduce(Accumulator.merge, parts).compute()
    # certified bounds depend on the numbers of rows, which are others here
    exact = {key: value for key, value in table(merged).items() if "certified" not in key[1]}
    assert exact == pytest.approx({key: table(expected)[key] for key in exact}, rel=1e-12)
    with pytest.raises(NoRowsError):
        running.compute()


@pytest.mark.long
def test_compute__in_between_changes_nothing(data):
    running = Accumulator(["ece", "nll"], classes=CLASSES)
    for start in range(0, 3000, 600):
        part = {name: data[name][start : start + 600] for name in ("logits", "labels")}
        running.update(**part)
        rows = {name: data[name][: start + 600] for name in ("logits", "labels")}
        expected = table(evaluate(from_arrays(**rows), ["ece", "nll"]))
        for _ in range(2):
            assert table(running.compute()) == pytest.approx(expected, rel=1e-12)
    running.reset()
    with pytest.raises(NoRowsError, match="call update first"):
        running.compute()
    running.update(**part)
    assert running.compute().n == (part["labels"] >= 0).sum()


def test_update__keeps_no_array_of_the_caller(data):
    logits, labels = data["logits"][:300].copy(), data["labels"][:300].copy()
    running = Accumulator("nll", classes=CLASSES)
    running.update(logits=logits, labels=labels)
    expected = running.compute()["nll"].value
    logits[:], labels[:] = 0, 1  # the next batch, in the same buffers
    assert running.compute()["nll"].value == expected


@pytest.mark.long
def test_memory__does_not_depend_on_the_number_of_updates(data):
    part = {name: column[:500] for name, column in data.items()}
    running = Accumulator(FIXED, classes=CLASSES, covariate_names=NAMES)
    sizes = []
    for _ in range(40):
        running.update(**part)
        sizes.append(len(pickle.dumps(running)))
    # counts of rows take more bytes as they grow
    assert sizes[-1] == pytest.approx(sizes[3], rel=1e-3)


# ---------------------------------------------------------------- bandwidths


DEFAULT = ["ckce(features=20)", "jkce(features=20)", "brier"]


def test_bandwidth__of_few_rows_is_that_of_evaluate(data):
    rows = {name: data[name][:900] for name in ("logits", "labels")}
    running = Accumulator(DEFAULT, classes=CLASSES)
    for start in range(0, 900, 300):
        running.update(**{name: column[start : start + 300] for name, column in rows.items()})
    result, expected = running.compute(), evaluate(from_arrays(**rows), DEFAULT)
    assert table(result) == pytest.approx(table(expected), rel=1e-12)
    assert [e.parameters for e in result.estimates] == [e.parameters for e in expected.estimates]
    assert not any("notes" in e.details for e in result.estimates)


def test_bandwidth__of_many_rows_is_that_of_the_first(data):
    rows = {name: data[name] for name in ("logits", "labels")}
    first = from_arrays(**{name: column[:1000] for name, column in rows.items()})
    bandwidth = evaluate(first, DEFAULT)["ckce"].parameters["bandwidth"]
    running = Accumulator(DEFAULT, classes=CLASSES)
    for start in range(0, ROWS, 700):
        running.update(**{name: column[start : start + 700] for name, column in rows.items()})
    result = running.compute()
    fixed = [CKCE(RandomFourier(20, bandwidth)), f"jkce(features=20, bandwidth={bandwidth})"]
    expected = evaluate(from_arrays(**rows), [*fixed, "brier"])
    assert table(result) == pytest.approx(table(expected), rel=1e-12)
    notes = ["bandwidths are fixed by the first 1,000 rows"]
    assert [e.details.get("notes") for e in result.estimates] == [notes, notes, None]


def test_merge__of_bandwidths_of_different_rows_is_refused_unless_they_are_kept(data):
    rows = {name: data[name] for name in ("logits", "labels")}
    parts = [{name: c[i * 2000 : (i + 1) * 2000] for name, c in rows.items()} for i in range(2)]
    first, second = (Accumulator(DEFAULT, classes=CLASSES) for _ in parts)
    first.update(**parts[0])
    second.update(**parts[1])
    with pytest.raises(OptionError, match=r"bandwidths or bins of their own.*keep_bandwidths"):
        first.merge(second)
    copy = pickle.loads(pickle.dumps(first))
    copy.reset(keep_bandwidths=True, first_row=2000)
    copy.update(**parts[1])
    result = first.merge(copy).compute()
    bandwidth = result["ckce"].parameters["bandwidth"]
    fixed = [f"{name}(features=20, bandwidth={bandwidth})" for name in ("ckce", "jkce")]
    at_once = evaluate(from_arrays(**{k: v[:4000] for k, v in rows.items()}), [*fixed, "brier"])
    assert table(result) == pytest.approx(table(at_once), rel=1e-12)


@pytest.mark.parametrize("sizes", [(300, 3000), (3000, 300), (300, 400), (800, 900)])
def test_merge__of_few_rows_takes_the_bandwidths_of_many(data, sizes):
    running = []
    start = 0
    for size in sizes:
        running.append(Accumulator("ckce(features=20)", classes=CLASSES))
        part = {name: data[name][start : start + size] for name in ("logits", "labels")}
        running[-1].update(**part)
        start += size
    result = running[0].merge(running[1]).compute()
    assert running[1].rows == sizes[1]
    settled = [f"ckce(features=20, bandwidth={result['ckce'].parameters['bandwidth']})"]
    rows = from_arrays(**{name: data[name][:start] for name in ("logits", "labels")})
    assert table(result) == pytest.approx(table(evaluate(rows, settled)), rel=1e-12)


# ---------------------------------------------------------------- intervals


@pytest.mark.long
def test_interval__equals_that_of_evaluate_with_the_same_row_numbers(data):
    estimators = ["ece", "nll", "jkce(features=10, bandwidth=0.4)"]
    expected = evaluate(from_arrays(**data), estimators, interval=Jackknife(groups=10))
    parts = []
    for start, stop in ((0, 2000), (2000, ROWS)):
        running = Accumulator(
            estimators, classes=CLASSES, interval=Jackknife(groups=10), first_row=start
        )
        running.update(**{name: column[start:stop] for name, column in data.items()})
        parts.append(running)
    with pytest.raises(OptionError, match="another first_row="):
        parts[0].merge(parts[0])
    result = parts[0].merge(parts[1]).compute()
    for batched, reference in zip(result.estimates, expected.estimates, strict=True):
        assert batched.interval.low == pytest.approx(reference.interval.low, rel=1e-9)
        assert batched.interval.high == pytest.approx(reference.interval.high, rel=1e-9)
    assert result.verdict == expected.verdict


# ---------------------------------------------------------------- kinds of columns


def test_labels_and_covariates__may_be_texts(data):
    names = np.array(["north", "south", "west"])[data["covariates"][:, 1].astype(int)]
    labels = np.array(["a", "b", "c", "d", None], object)[data["labels"]]
    running = Accumulator(
        ["brier"],
        classes=["a", "b", "c", "d"],
        group_by="region",
        categories={"region": ["west", "south", "north"]},
    )
    for part in (slice(0, 2000), slice(2000, ROWS)):
        frame = pd.DataFrame({"region": names[part]})
        running.update(logits=data["logits"][part], labels=labels[part], covariates=frame)
    source = from_arrays(
        logits=data["logits"], labels=data["labels"], covariates=pd.DataFrame({"region": names})
    )
    expected = evaluate(source, ["brier"], group_by="region")
    result = {f"{key:g}": e[0].value for key, e in running.compute().groups.items()}
    assert list(result) == ["west", "south", "north"]
    assert result == pytest.approx(
        {f"{key:g}": e[0].value for key, e in expected.groups.items()}, rel=1e-12
    )
    with pytest.raises(InvalidDataError, match=r"region.*'east', which is not among"):
        running.update(logits=data["logits"][:1], labels=["a"], covariates=[["east"]])


@pytest.mark.long
@pytest.mark.process  # torch starts ldconfig when it is imported
def test_batches__may_be_tensors(data):
    torch = pytest.importorskip("torch", reason="tensors of torch")
    numpy = pytest.importorskip("jax.numpy", reason="arrays of jax")
    logits, labels = data["logits"].astype(np.float32), data["labels"]
    expected = evaluate(from_arrays(logits=logits, labels=labels), ["ece", "nll"])
    for convert in (torch.tensor, numpy.asarray):
        running = Accumulator(["ece", "nll"], classes=CLASSES)
        for part in (slice(0, 3000), slice(3000, ROWS)):
            running.update(logits=convert(logits[part]), labels=convert(labels[part]))
        assert table(running.compute()) == pytest.approx(table(expected), rel=1e-12)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("estimator", "says"),
    [
        ("kce", "use method='spectral' or 'features'"),
        ("jkce(method=tiles)", "use method='spectral' or 'features'"),
        ("kce(method=nystrom)", "use method='spectral' or 'features'"),
        ("ckce(method=exact)", "needs all pairs of rows.* use method='features'"),
        ("kce(bandwidth_share=0.2, method=features)", "several passes.*set the bandwidths"),
    ],
)
def test_estimators__that_need_more_than_a_pass_are_refused_before_any_update(estimator, says):
    with pytest.raises(OptionError, match=says):
        Accumulator(["brier", estimator], classes=10)


def test_update__an_invalid_row_adds_none(data):
    running = Accumulator(["brier", "ckce(features=10)"], classes=CLASSES)
    bad = data["logits"][:900].copy()
    bad[500] = np.nan
    for start in (0, 900, 1800):  # while rows are kept for the bandwidth, and later
        with pytest.raises(InvalidDataError, match=f"row {start + 500} of accumulated rows"):
            running.update(logits=bad, labels=data["labels"][:900])
        assert running.rows == start
        part = {name: data[name][start : start + 900] for name in ("logits", "labels")}
        running.update(**part)
    assert running.compute().n == (data["labels"][:2700] >= 0).sum()


def test_update__other_columns_than_before_are_refused(data):
    logits, labels = data["logits"][:10], data["labels"][:10]
    running = Accumulator("brier", classes=CLASSES)
    running.update(logits=logits, labels=labels)
    with pytest.raises(OptionError, match="kind: 'probabilities', but 'logits' before"):
        running.update(probabilities=np.full((3, 4), 0.25), labels=[0, 1, 2])
    with pytest.raises(OptionError, match="weighted: True, but False before"):
        running.update(logits=logits, labels=labels, weights=np.ones(10))
    with pytest.raises(OptionError, match="classes: 3, but 4 before"):
        running.update(logits=logits[:, :3], labels=np.zeros(10, int))
    with pytest.raises(OptionError, match="no covariate 'region'"):
        Accumulator("brier", classes=4, group_by="region").update(logits=logits, labels=labels)
    text = r"'x0' has texts; .*categories=\{'x0': \['a', 'b'\]\}"
    with pytest.raises(OptionError, match=text):
        Accumulator("brier", classes=4).update(
            logits=logits[:2], labels=[0, 1], covariates=["b", "a"]
        )
    with pytest.raises(OptionError, match="different settings"):
        running.merge(Accumulator("nll", classes=CLASSES))


def rare_events(n=4000):
    rng = np.random.default_rng(3)
    p = rng.beta(1.0, 75.0, n)
    return p, (rng.random(n) < p).astype(int)


@pytest.mark.long
@pytest.mark.parametrize("batch", [300, 2500])
def test_rare_events__have_bins_of_equal_mass_as_in_evaluate(batch):
    p, y = rare_events()
    running = Accumulator(classes=2)
    for start in range(0, len(y), batch):
        running.update(probabilities=p[start : start + batch], labels=y[start : start + batch])
    result = running.compute()
    expected = evaluate(from_arrays(probabilities=p, labels=y, binary=True))
    names = [estimate.estimator for estimate in expected.estimates]
    assert [estimate.estimator for estimate in result.estimates] == names
    label = "ece(edges='equal-mass')"
    assert result[label].value == pytest.approx(expected[label].value, abs=1e-12)
    running.reset()
    assert "equal-mass" not in repr(running)


def test_negligible__is_that_of_the_verdict():
    rng = np.random.default_rng(4)
    p = rng.uniform(0.1, 0.9, 40_000)
    y = (rng.random(len(p)) < p - 0.02).astype(int)
    states = []
    for negligible in (0.0, 0.05):
        running = Accumulator(["ece"], classes=2, interval=True, negligible=negligible)
        running.update(probabilities=p, labels=y)
        states.append(running.compute().judgement.state)
    assert states == ["miscalibrated", "small"]
