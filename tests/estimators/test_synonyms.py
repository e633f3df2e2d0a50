"""Names of the field: one table of synonyms, at every place that takes the name of an estimator."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale
from calibscale import metrics
from calibscale.errors import OptionError
from calibscale.estimators.estimator_texts import estimator
from calibscale.estimators.known_estimators import ESTIMATORS, named
from calibscale.estimators.synonyms import SYNONYMS
from calibscale.formatting.naming import plain_name

RNG = np.random.default_rng(8)
P = RNG.random(300)
Y = (RNG.random(300) < P).astype(int)
SOURCE = calibscale.from_arrays(probabilities=P, labels=Y, binary=True)


@pytest.mark.parametrize("name", SYNONYMS)
def test_synonyms__resolve_to_an_estimator_or_a_sentence_that_names_one(name):
    assert plain_name(name) == name
    meaning = SYNONYMS[name]
    if meaning.partition("(")[0] in ESTIMATORS:
        assert estimator(name) == estimator(meaning)
        return
    words = {word.strip(".,;:") for word in meaning.replace("(", " ").split()}
    assert (
        words & {*ESTIMATORS, "reliability", "sklearn.metrics.roc_auc_score"}
        or "sklearn" in meaning
    )
    assert meaning.endswith((".", "score")) or "sklearn" in meaning
    with pytest.raises(OptionError, match="there is no estimator"):
        named(name)


def test_synonyms__do_not_hide_estimators():
    assert not SYNONYMS.keys() & {plain_name(name) for name in ESTIMATORS}


# Names of the field, without regard to case, - and _
@pytest.mark.parametrize(
    ("synonym", "meant"),
    [
        ("ECE", "ece"),
        ("MCE", "mce"),
        ("smECE", "smooth_ece"),
        ("Smooth-ECE", "smooth_ece"),
        ("adaptive_ece", "ece(edges=equal-mass)"),
        ("adaptive-ece(bins=10)", "ece(edges=equal-mass, bins=10)"),
        ("brier_score", "brier"),
        ("log_loss", "nll"),
        ("cross-entropy", "nll"),
        ("TCE2Debiased", "tce2_debiased"),
    ],
)
def test_names__of_the_field_are_estimators(synonym, meant):
    assert estimator(synonym) == estimator(meant)
    by_synonym, by_name = (
        calibscale.evaluate(SOURCE, name, floor=False).estimates for name in (synonym, meant)
    )
    assert by_synonym[0].value == by_name[0].value


# A name that is not the same quantity gets a sentence, and suggestions are right
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ACE", "mean over all classes"),
        ("rms_ce", "use tce2, the square of this error; results have its root"),
        ("static_ece", "use cwce2"),
        ("classwise_ece", "use cwce2"),
        ("hosmer_lemeshow", "calibration_test"),
        ("brier_score_loss", "half of it"),
        ("AUROC", "discrimination"),
        ("eec", "did you mean 'ece'"),
        ("log_los", "did you mean 'nll'"),
        ("qqqq", "`calibscale estimators` lists all estimators"),
    ],
)
def test_names__of_other_quantities_say_what_to_use(text, sentence):
    with pytest.raises(OptionError, match=sentence):
        calibscale.evaluate(SOURCE, text)


def test_hosmer_lemeshow__names_a_statistic_that_can_be_tested():
    test = calibscale.calibration_test(
        SOURCE, "tce2(bins=10, edges=equal-mass)", n_replicates=9, seed=1
    )
    assert 0 < test.results[0].p_value <= 1


def test_results__are_read_without_regard_to_case():
    result = calibscale.evaluate(SOURCE, ["ece", "smooth_ece"], floor=False)
    assert result["ECE"] is result["ece"]
    assert result["smECE".replace("sm", "smooth")] is result["smooth_ece"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("ECE", r"use ece\(y_true, y_prob\)"),
        ("adaptive_ece", r"use ece\(y_true, y_prob, edges='equal-mass'\)"),
        ("brier_score", r"use brier\(y_true, y_prob\)"),
        ("rms_ce", "use tce2"),
        ("crps", "predictive distributions"),
    ],
)
def test_metrics__say_the_right_call_for_other_names(name, sentence):
    with pytest.raises(AttributeError, match=sentence):
        getattr(metrics, name)
    assert not hasattr(metrics, name)
