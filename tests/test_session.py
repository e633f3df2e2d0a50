"""Sessions: their options, their source, versions, and estimates of unsupported estimators."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from importlib.metadata import version

import numpy as np
import pytest

import calibscale as cs
from calibscale.data.source import ArraySource
from calibscale.session import Session, versions


def test_version__is_that_of_the_distribution():
    assert cs.__version__ == version("calibscale")
    with pytest.raises(AttributeError, match="no attribute '__versions__'"):
        cs.__versions__  # noqa: B018


def test_versions__include_the_libraries_that_results_depend_on(source):
    libraries = {"calibscale", "numpy", "scipy", "numba", "zarr", "finufft"}
    assert versions() == {name: version(name) for name in libraries}
    assert cs.evaluate(source, cs.Brier()).to_dict()["versions"] == versions()


@pytest.mark.parametrize(
    ("estimator", "notion"),
    [
        (cs.ECE(notion="positive"), "positive"),
        (cs.ConfidenceGap(notion="positive"), "positive"),
        (cs.KCE(notion="positive"), "positive"),
        (cs.JKCE(method="tiles", notion="positive"), "positive"),
        (cs.KLCE(("age",), notion="top_label"), "top_label"),
        (cs.KLCE(("age",)), "canonical"),
        (cs.CWCE2(edges="equal-mass"), "class_wise"),
        (cs.SimplexECE(max_cells=20), "canonical"),
        (cs.CKCE(conditional_on="age", method="exact"), "canonical"),
    ],
)
def test_unsupported__has_the_notion_of_the_estimator(source, estimator, notion):
    (estimate,) = cs.evaluate(source, [estimator], on_unsupported="report")
    assert (estimate.estimator, estimate.notion) == (estimator.name, notion)
    assert estimate.value is None
    assert estimate.reason


def test_notion__of_two_classes_is_positive_by_default():
    source = cs.from_arrays(probabilities=np.full(9, 0.5), labels=np.zeros(9, int), binary=True)
    (estimate,) = cs.evaluate(source, [cs.KLCE(("age",))], on_unsupported="report")
    assert (estimate.notion, estimate.value) == ("positive", None)


# ---------------------------------------------------------------- options and reuse

VERBS = (
    cs.evaluate,
    cs.select,
    cs.calibration_test,
    cs.power,
    cs.rank,
    cs.murphy_diagram,
    cs.concentration_curve,
    cs.double_lift,
    cs.label_shift,
    cs.audit,
    cs.local_bias,
    cs.reliability,
    cs.plan,
)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_options__are_in_every_signature_and_misspelt_ones_are_named(verb):
    names = [*inspect.signature(verb).parameters]
    options = ["on_invalid", "tolerance", "block_rows", "scheduler", "memory_limit", "progress"]
    assert names[-6:] == options
    with pytest.raises(TypeError, match=r"has no parameter 'schedular'; did you mean 'scheduler'"):
        verb(schedular="serial")


def test_options__of_a_verb_replace_those_of_the_session(source):
    with Session.open(source, on_invalid="drop", scheduler="serial", tolerance=1e-3) as session:
        of_session = cs.evaluate(session, cs.Brier()).parameters
        replaced = cs.evaluate(
            session, cs.Brier(), tolerance=1e-2, scheduler="threads:2"
        ).parameters
    assert (of_session["on_invalid"], of_session["tolerance"], of_session["scheduler"]) == (
        "drop",
        1e-3,
        "serial",
    )
    assert (replaced["on_invalid"], replaced["tolerance"]) == ("drop", 1e-2)
    assert replaced["scheduler"] == "threads:2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_invalid": "skip"}, "on_invalid must be"),
        ({"tolerance": 1.0}, "tolerance must be"),
        ({"block_rows": 0}, "block_rows must be"),
        ({"scheduler": "tread"}, "unknown scheduler"),
    ],
)
def test_options__are_checked_before_anything_is_read(source, options, message):
    with pytest.raises(cs.OptionError, match=message):
        cs.evaluate(source, cs.Brier(), **options)


@dataclass(frozen=True, eq=False)
class _Counted(ArraySource):
    """Source that counts reads of its covariates alone, as a summary makes them."""

    reads: list[int] = field(default_factory=list)

    def read_covariates(self, start, stop):
        self.reads.append(stop - start)
        return super().read_covariates(start, stop)

    def read(self, start, stop, covariates=False):
        count = len(self.reads)
        block = super().read(start, stop, covariates)
        del self.reads[count:]
        return block


def test_audit__summarises_covariates_once(rng):
    p, x = rng.random(400), rng.normal(size=(400, 2))
    plain = cs.from_arrays(
        probabilities=p, labels=(rng.random(400) < p).astype(int), binary=True, covariates=x
    )
    counted = _Counted(**vars(plain))
    cs.audit(counted, ["x0", "x1"], n_replicates=19, scheduler="serial")
    assert counted.reads == [400]


@pytest.mark.long
def test_session__results_equal_those_of_the_source(rng):
    p, x = rng.random(300), rng.normal(size=(300, 2))
    x[5, 1] = np.nan
    source = cs.from_arrays(
        probabilities=p, labels=(rng.random(300) < p).astype(int), binary=True, covariates=x
    )
    options = {"on_invalid": "drop", "scheduler": "serial"}
    with Session.open(source, **options) as session:
        session.profile.columns(("x0", "x1"))
        in_session = cs.local_bias(session, "x0", at="grid")
        outside = cs.local_bias(source, "x0", at="grid", **options)
        np.testing.assert_array_equal(in_session.bias, outside.bias)
        assert in_session.n == 300
        assert cs.audit(session, ["x0", "x1"], n_replicates=9).n == 299
        test = cs.calibration_test(session, cs.KLCE(("x0",)), n_replicates=9)
    again = cs.calibration_test(source, cs.KLCE(("x0",)), n_replicates=9, **options)
    assert test["klce"].p_value == again["klce"].p_value
