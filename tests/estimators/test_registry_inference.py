"""Every estimator has an interval, a test and a floor, or one sentence says why not."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import calibscale as cs
from calibscale.estimators.known_estimators import BIASED, ESTIMATORS, LOCAL, WITHOUT_JUDGEMENT
from calibscale.inference import testable
from calibscale.inference.floors import no_floor
from calibscale.intervals.interval_estimates import no_interval
from calibscale.predictions.claims import includes
from tests.support import forecast_rows

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "inference_table.md"
SETTINGS = {name: f"{name}(covariates=['a'])" for name in LOCAL}


def _columns(n):
    a = np.arange(n) % 3
    return {
        "covariates": np.column_stack([np.arange(n) // 3, a]),
        "covariate_names": ["patient", "a"],
    }


def _source(kind, n=150):
    rng = np.random.default_rng(8)
    if kind in forecast_rows.FORECASTS:
        return forecast_rows.source(kind, n, 1, **_columns(n))
    classes = 2 if kind == "binary" else 3
    q = rng.dirichlet(np.ones(classes), n)
    labels = np.minimum((q.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1), classes - 1)
    labels = rng.dirichlet(np.ones(classes), n) if kind == "soft" else labels
    return cs.from_arrays(probabilities=q, labels=labels, **_columns(n))


def _named(source, name):
    """Text of the estimator, or None where it does not judge such rows."""
    target = "soft labels" if source.labels.ndim == 2 else source.target
    if not includes(ESTIMATORS[name].judges, target):
        return None
    density = not (name == "log_score" and source.kind in ("ensemble", "quantiles"))
    return SETTINGS.get(name, name) if density else None


def _plain(name):
    """Estimator with its default settings."""
    return ESTIMATORS[name](covariates=("a",)) if name in SETTINGS else ESTIMATORS[name]()


@pytest.mark.long
@pytest.mark.parametrize("cluster", [None, "patient"])
@pytest.mark.parametrize("kind", ["binary", "classes", "soft", *forecast_rows.FORECASTS])
def test_registry__has_a_floor_of_every_kind_of_rows_or_says_why_not(kind, cluster):
    # S8: floors were missing of forecasts, of clusters and of soft labels
    source = _source(kind)
    names = [text for name in ESTIMATORS if (text := _named(source, name))]
    for estimate in cs.evaluate(source, names, cluster=cluster):
        notes = estimate.details.get("notes", ())
        said = [note for note in notes if note.startswith("no floor: ")]
        if estimate.floor is not None:
            floor = estimate.floor
            assert estimate.estimator in BIASED
            assert np.isfinite([floor.mean, floor.high]).all()
            assert 0 < floor.p_value <= 1
            assert not said
        elif not said:
            assert no_floor(_plain(estimate.estimator)), estimate.estimator


@pytest.mark.long
@pytest.mark.parametrize("kind", ["binary", "classes", "normal"])
def test_registry__has_an_interval_or_a_test_or_says_why_not(kind):
    # S11: cox_slope, ici, aurc, spiegelhalter and others had neither, and no note
    source = _source(kind)
    names = [name for name in ESTIMATORS if _named(source, name)]
    texts = [_named(source, name) for name in names]
    result = cs.evaluate(source, texts, interval="jackknife", floor=False)
    for name, text, estimate in zip(names, texts, result, strict=True):
        notes = estimate.details.get("notes", ())
        if estimate.interval is not None or any(n.startswith("no interval: ") for n in notes):
            continue
        assert isinstance(ESTIMATORS[name], testable.Testable), name
        (test,) = cs.calibration_test(source, [text], n_replicates=19).results
        assert 0 < test.p_value <= 1


@pytest.mark.parametrize("name", ["spiegelhalter", "pit_kuiper", "pit_ks", "pit_cvm"])
def test_registry__tests_z_and_pit_by_name(name):
    # S11: spiegelhalter "cannot be tested"
    source = _source("normal" if name.startswith("pit") else "binary")
    (test,) = cs.calibration_test(source, [name], n_replicates=19).results
    assert 0 < test.p_value <= 1


def test_spiegelhalter__test_is_that_of_drawn_labels():
    rng = np.random.default_rng(9)
    n, w = 80, rng.uniform(0.5, 2.0, 80)
    p = rng.uniform(0.01, 0.99, n)
    y = (rng.random(n) < np.where(p > 0.5, 0.5 + (p - 0.5) * 0.55, 0.5 - (0.5 - p) * 0.55)) * 1
    source = cs.from_arrays(probabilities=p, labels=y, weights=w, binary=True)
    (test,) = cs.calibration_test(source, ["spiegelhalter"], n_replicates=999).results
    deviation = np.sqrt((w * w * (1 - 2 * p) ** 2 * p * (1 - p)).sum())
    z = abs((w * (y - p) * (1 - 2 * p)).sum()) / deviation
    assert test.value == pytest.approx(z)
    drawn = rng.random((20_000, n)) < p
    sizes = np.abs((w * (drawn - p) * (1 - 2 * p)).sum(axis=1)) / deviation
    expected = (sizes >= z).mean()
    # four standard errors of 999 draws
    assert test.p_value == pytest.approx(expected, abs=4 * np.sqrt(expected / 999) + 0.002)


def test_spiegelhalter__of_certain_predictions_says_why_it_has_no_test():
    source = cs.from_arrays(probabilities=[0.0, 1.0] * 20, labels=[0, 1] * 20, binary=True)
    (test,) = cs.calibration_test(source, ["spiegelhalter"], n_replicates=19).results
    assert test.value is None
    assert "does not vary" in test.reason


def _rows_of_table():
    """Rows of the table, from the registry."""
    for name, kind in ESTIMATORS.items():
        bound = _plain(name)
        floor = no_floor(bound)
        cells = (
            no_interval(bound) or "yes",
            "yes" if isinstance(kind, testable.Testable) else "no",
            floor or "yes",
        )
        yield f"| `{name}` | {' | '.join(cells)} |"


def test_names__of_estimators_without_a_judgement_agree_with_their_classes():
    without = {
        name
        for name in ESTIMATORS.built_in
        if no_interval(ESTIMATORS[name]) and no_floor(ESTIMATORS[name])
    }
    assert set(WITHOUT_JUDGEMENT) == without


def test_table__of_the_documentation_is_that_of_the_registry():
    written = [line for line in PAGE.read_text().splitlines() if re.match(r"\| `", line)]
    assert written == list(_rows_of_table())
