"""Axes of reliability diagrams, and the texts of their pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale.cli import main
from calibscale.formatting.number_texts import unbroken
from calibscale.output.pictures import plot_result
from calibscale.output.plots.diagrams import DrawnDiagram
from calibscale.output.plots.prediction_plots import plot_reliability
from calibscale.output.plots.probability_axes import probability_axes
from calibscale.output.plots.score_plots import plot_corp
from calibscale.output.plots.style import legend_entries


def _binary(log_odds: Any, seed: int = 0) -> Any:
    """Calibrated predictions with these log-odds."""
    p = 1 / (1 + np.exp(-np.asarray(log_odds)))
    y = (np.random.default_rng(seed).random(len(p)) < p).astype(int)
    return cs.from_arrays(probabilities=p, labels=y, binary=True)


def _rare(rows: int = 4000, seed: int = 3) -> Any:
    """Events of about 1.3 %."""
    return _binary(np.random.default_rng(seed).normal(-5, 1.2, rows), seed)


def _box(result: Any) -> tuple[float, float, float, float]:
    """Range of the predictions and frequencies that a diagram shows, computed bin by bin."""
    x, y = [], []
    for b in result.overall.filled:
        x.append(b.mean_p)
        y += [b.frequency, *(b.interval or ()), *(b.consistency or ()), b.mean_p]
    return min(x), max(x), min(y), max(y)


@pytest.mark.parametrize("edges", ["equal-width", "equal-mass"])
@pytest.mark.parametrize(
    "log_odds",
    [
        np.random.default_rng(3).normal(-5, 1.2, 4000),  # V5: rare events
        np.random.default_rng(4).normal(4, 0.7, 4000),  # almost certain ones
        np.random.default_rng(5).normal(0, 0.2, 4000),
        np.random.default_rng(6).normal(-0.5, 0.4, 4000),
    ],
    ids=["rare", "certain", "middle", "below"],
)
def test_reliability__the_data_fill_the_axes(log_odds: Any, edges: str) -> None:
    result = cs.reliability(_binary(log_odds), edges=edges, bins=10)
    ax = plot_reliability(result)
    left, right, low, high = _box(result)
    (x_low, x_high), (y_low, y_high) = ax.get_xlim(), ax.get_ylim()
    assert x_low <= left <= right <= x_high
    assert y_low <= low <= high <= y_high
    filled = (right - left) * (high - low)
    assert filled >= 0.6 * (x_high - x_low) * (y_high - y_low)
    # the diagonal crosses the axes
    assert max(x_low, y_low) < min(x_high, y_high)


def test_reliability__keeps_the_square_where_the_data_fill_it() -> None:
    source = _binary(np.random.default_rng(0).normal(0, 2, 3000))
    ax = plot_reliability(cs.reliability(source))
    assert ax.get_xlim() == ax.get_ylim() == pytest.approx((-0.02, 1.02))


@pytest.mark.parametrize("axes", ["linear", "logit", "auto"])
def test_probability_axes__contain_every_point(axes: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        count = rng.integers(1, 12)
        x, y = rng.beta(0.3, rng.choice([0.3, 30]), (2, count)).round(rng.integers(2, 12))
        ends = rng.random(rng.integers(0, 5))
        scale = probability_axes(axes, x, y, ends)
        for axis, values in ((scale.x, x), (scale.y, y)):
            places = axis.place(values)
            assert np.all((axis.low <= places) & (places <= axis.high))
            inside = (values > 0) & (values < 1)
            np.testing.assert_allclose(places[inside], values[inside], rtol=1e-12)
        assert max(scale.x.low, scale.y.low) < min(scale.x.high, scale.y.high)


def test_logit_axes__have_a_place_for_exact_zeros_and_ones() -> None:
    p = np.repeat([0.002, 0.02, 0.3, 0.6], [500, 300, 40, 4])
    y = np.concatenate([np.zeros(500), np.arange(300) < 9, np.arange(40) < 12, np.ones(4)])
    source = cs.from_arrays(probabilities=p, labels=y.astype(int), binary=True)
    result = cs.reliability(source, edges=(0, 0.01, 0.1, 0.5, 1))
    ax = plot_reliability(result, axes="logit")
    ax.figure.draw_without_rendering()
    assert ax.get_xscale() == ax.get_yscale() == ax.child_axes[0].get_xscale() == "logit"
    drawn = {line.get_marker(): line.get_ydata() for line in ax.lines if line.get_marker() in "v^"}
    assert sorted(drawn) == ["^", "v"]
    low, high = ax.get_ylim()
    assert low < drawn["v"][0] < 0.002  # below every other value
    assert 0.6 < drawn["^"][0] < high
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert {"0\u00a0%", "100\u00a0%", "10\u00a0%"} <= set(labels)
    assert "exactly 0 or 1, at the edge" in legend_entries(ax)


def test_logit_axes__label_round_percentages() -> None:
    ax = plot_reliability(cs.reliability(_rare(), edges="equal-mass", bins=8), axes="logit")
    ax.figure.draw_without_rendering()
    (counts,) = ax.child_axes
    labels = [label.get_text() for label in counts.get_xticklabels()]
    assert {"0.1\u00a0%", "1\u00a0%"} <= set(labels)
    places = counts.get_xticks()
    np.testing.assert_allclose(places, [float(text[:-2]) / 100 for text in labels])


def test_logit_axes__bars_have_the_edges_of_the_bins() -> None:
    result = cs.reliability(_rare(), edges="equal-mass", bins=8)
    ax = plot_reliability(result, axes="logit")
    (counts,) = ax.child_axes
    assert [bar.get_height() for bar in counts.patches] == [b.count for b in result.overall.filled]
    for bar, b in zip(counts.patches, result.overall.filled, strict=True):
        inside = max(b.lower, ax.get_xlim()[0]), min(b.upper, ax.get_xlim()[1])
        middle = bar.get_x() + bar.get_width() / 2
        assert inside[0] <= middle <= inside[1]


def test_auto_axes__are_logit_for_extreme_predictions_only() -> None:
    extreme, moderate = cs.reliability(_rare()), cs.reliability(_binary(np.linspace(-1, 1, 2000)))
    assert plot_reliability(extreme, axes="auto").get_xscale() == "logit"
    assert plot_reliability(extreme).get_xscale() == "linear"
    assert plot_reliability(moderate, axes="auto").get_xscale() == "linear"


@pytest.mark.long
def test_axes__are_used_for_several_models_and_for_curves_of_the_score() -> None:
    result = cs.reliability(_rare())
    assert (
        plot_reliability([result, result], names=["a", "b"], axes="logit").get_xscale() == "logit"
    )
    corp = cs.evaluate(_rare(), "corp")["corp"]
    for axes in ("linear", "logit"):
        ax = plot_corp(corp, axes=axes)
        assert ax.get_yscale() == axes
    assert ax.get_ylim()[0] > 0


def test_axes__quantile_levels_are_linear() -> None:
    outcomes = np.random.default_rng(0).normal(size=300)
    forecasts = np.column_stack([np.zeros(300), np.ones(300)])
    source = cs.from_arrays(predictions=forecasts, labels=outcomes, forecast="normal")
    ax = plot_reliability(cs.reliability(source), axes="logit")
    assert ax.get_xscale() == "linear"
    # the legend describes a point, which is no interval
    assert "share of outcomes with its 95\u00a0% interval" in map(unbroken, legend_entries(ax))


@pytest.mark.long
def test_axes__unknown_names_and_tables_are_errors(tmp_path: Path) -> None:
    result = cs.reliability(_rare(500))
    with pytest.raises(cs.OptionError, match="axes must be linear, logit or auto"):
        plot_reliability(result, axes="log")
    with pytest.raises(cs.OptionError, match=r"t\.csv: axes='logit' is for pages and pictures"):
        result.save(tmp_path / "t.csv", axes="logit")
    for name in ("r.html", "r.svg"):
        result.save(tmp_path / name, axes="logit")
        assert re.search(">10[\u00a0 ]%<|<!-- 10\u00a0% -->", (tmp_path / name).read_text("utf-8"))


@pytest.mark.long
def test_axes__are_an_option_of_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    p = 1 / (1 + np.exp(-np.random.default_rng(3).normal(-5, 1.2, 600)))
    rows = [f"{q:.6f},{int(i % 60 == 0)}" for i, q in enumerate(p)]
    table.write_text("\n".join(["p,y", *rows]))
    columns = ["--probabilities", "p", "--labels", "y", "--axes", "logit"]
    page = tmp_path / "check.html"
    main(["check", str(table), *columns, "-o", str(page)])
    assert "1\u00a0%" in page.read_text("utf-8")
    for command, option in (("reliability", "-o"), ("evaluate", "--figure")):
        picture = tmp_path / f"{command}.svg"
        main([command, str(table), *columns, option, str(picture)])
        assert picture.stat().st_size > 1000
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["reliability", str(table), *columns])
    assert "--axes needs a picture: pass --output PATH" in capsys.readouterr().err


# ---------------------------------------------------------------- texts


def _texts(figure: Any) -> list[str]:
    """Texts of a figure that are not ticks."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_picture__says_nothing_twice_and_breaks_no_number() -> None:
    result = cs.reliability(_rare(2000))
    figure = plot_result(result)
    texts = _texts(figure)
    error = DrawnDiagram.of(result).ece.partition(",")[0]
    assert sum(text.count(error) for text in texts) == 1
    assert not any("Of all rows" in text or "All rows" in text for text in texts)
    title = [text.get_text() for text in figure.subfigs[0].texts]
    assert not any(re.search(r"\d$", line) or line.startswith("%") for line in title[2:-1])


@pytest.mark.long
def test_picture__names_each_group() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(600)
    source = cs.from_arrays(
        probabilities=p,
        labels=(rng.random(600) < p).astype(int),
        binary=True,
        covariates=np.repeat([0.0, 1.0], 300)[:, None],
        covariate_names=["site"],
    )
    figure = plot_result(cs.reliability(source, group_by="site"))
    headings = [part.get_suptitle().replace("\u00a0", " ") for part in figure.subfigs[1:]]
    assert headings[0] == "All rows"
    assert sorted(headings[1:]) == ["site = 0", "site = 1"]


def test_picture__legend_fits_the_width() -> None:
    figure = plot_result(cs.reliability(_rare(2000)), axes="logit")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1


def test_unbroken__binds_numbers_and_units() -> None:
    text = unbroken("95 % interval, 1.6 points, p = 0.01, noise 95 % 0.2, ± 2, 10 rows")
    words = text.replace("\u00a0", "_").split()
    assert " ".join(words) == "95_% interval, 1.6_points, p_=_0.01, noise 95_%_0.2, ±_2, 10 rows"
