"""Plots of measures of the score: what is drawn, and where reports and files have it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas

import calibscale as cs
from calibscale.output.documents.articles import article_of, document
from calibscale.output.plots import plot_corp, plot_cumulative, plot_murphy, plot_risk_coverage
from calibscale.output.reading import read
from tests.support.score_peers import rows

NAMES = ["ecce_mad", "corp", "murphy", "aurc", "ecce_range"]


@pytest.fixture(scope="module")
def result() -> cs.Evaluation:
    p, y = rows("rare")
    source = cs.from_arrays(probabilities=p, labels=y.astype(int), binary=True)
    return cs.evaluate(source, NAMES)


def _drawn(plot, estimate):
    """Points of the lines of a plot by label, and its axes."""
    ax = plot(estimate, ax=Canvas().subplots())
    return {line.get_label(): line.get_xydata() for line in ax.lines}, ax


@pytest.mark.long
def test_murphy__has_the_scores_and_the_largest_miscalibration(result):
    details = result["murphy"].details
    x, score, miscalibration, discrimination = map(np.array, details["murphy"].values())
    lines, ax = _drawn(plot_murphy, result["murphy"])
    assert np.allclose(lines["predictions"], np.column_stack([x, score]))
    assert np.allclose(lines["recalibrated predictions"][:, 1], score - miscalibration)
    constant = lines["mean event rate"][:, 1]
    assert np.allclose(constant, score - miscalibration + discrimination)
    (segment,) = ax.collections[-1].get_segments()
    assert np.ptp(segment[:, 1]) == pytest.approx(result["murphy"].value, rel=0.05)
    assert ax.get_xlim()[1] < 0.6  # where scores are, not at thresholds that none reaches


@pytest.mark.long
def test_corp__has_the_steps_and_ends_at_common_frequencies(result):
    details = result["corp"].details
    _, ax = _drawn(plot_corp, result["corp"])
    low, high, frequency, _ = details["steps"].values()
    for segment, *step in zip(ax.collections[-1].get_segments(), low, high, frequency, strict=True):
        assert [*segment[:, 0], *segment[:, 1]] == [*step, step[2]]
    # the last row alone has an event, and does not stretch the axes
    assert frequency[-1] == 1.0
    assert ax.get_ylim()[1] < 0.3


@pytest.mark.long
@pytest.mark.parametrize("law", ["rare", "confident", "rounded"])
def test_band__has_the_curves_of_drawn_labels(law):
    p, _ = rows(law, 1000)
    rng = np.random.default_rng(5)
    inside = []
    for _ in range(40):
        y = (rng.random(len(p)) < p).astype(int)
        source = cs.from_arrays(probabilities=p, labels=y, binary=True)
        details = cs.evaluate(source, "corp", floor=False)["corp"].details
        score, low, high = map(np.array, details["band"].values())
        starts, _, frequency, _ = map(np.array, details["steps"].values())
        fit = frequency[np.searchsorted(starts, score, "right") - 1]
        inside.append(np.mean((low - 1e-9 <= fit) & (fit <= high + 1e-9)))  # drawn 0s are 1e-13
    # curves of one set of labels have a few independent parts; 40 sets, 100 draws
    assert np.mean(inside) == pytest.approx(0.95, abs=0.04)


@pytest.mark.long
def test_cumulative__has_the_walk_from_0_to_its_extremes(result):
    lines, ax = _drawn(plot_cumulative, result["ecce_range"])
    walks = [xy for xy in lines.values() if len(xy) > 2]
    assert walks[0][0].tolist() == [0.0, 0.0]
    assert np.ptp(walks[0][:, 1]) == pytest.approx(result["ecce_range"].value, rel=1e-12)
    assert [tick.get_text().split("\n")[0] for tick in ax.get_xticklabels()][-1] == "100 %"


def test_risk_coverage__ends_at_the_error_rate(result):
    lines, _ = _drawn(plot_risk_coverage, result["aurc"])
    risk, best = [xy for xy in lines.values() if len(xy) > 2][::-1]
    rate = result["aurc"].details["error_rate"]
    assert risk[-1].tolist() == [1.0, rate]
    assert best[-1] == pytest.approx([1.0, rate])
    assert (best[:, 1] <= risk[:, 1] + 1e-15).all()


def test_documents__draw_each_curve_once_and_omit_malformed_ones(result):
    titles = [figure.title for figure in document(result).figures]
    assert titles == [
        "Cumulative differences",
        "CORP reliability diagram",
        "Murphy diagram",
        "Risk–coverage curve",
    ]
    value = result.to_dict()
    del value["results"][NAMES.index("corp")]["details"]["band"]  # an earlier version's
    assert len(article_of(read(value)).figures[1].draw().collections) == 1
    curves = [("murphy", "murphy", "score"), ("aurc", "risk_coverage", "risk")]
    for name, key, column in curves:
        for bad in (None, [], {"x": 1}, "text", [{"x": 1}], {column: [1.0, None]}):
            broken = copy.deepcopy(value)
            broken["results"][NAMES.index(name)]["details"][key] = bad
            assert len(article_of(read(broken)).figures) == 3
    with pytest.raises(cs.OptionError, match="ecce_mad, positive class has no murphy that can be"):
        plot_murphy(result["ecce_mad"])


@pytest.mark.long
def test_files__have_the_curves(result, tmp_path):
    result.save(tmp_path / "scores.html")
    page = (tmp_path / "scores.html").read_text()
    assert page.count("<svg") == 4
    result.save(tmp_path / "scores.svg")
    text = (tmp_path / "scores.svg").read_text()
    assert text.count("<!-- mean elementary score -->") == 1
