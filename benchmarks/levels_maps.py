"""Levels of the map of local bias, of an audit's regions, and of its groups."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

import numpy as np
from laws import Law
from measure import Report
from simulated import SEED, shared, within

LAWS = tuple(map(Law, ("uniform", "conf99", "bimix", "rare", "narrow", "atoms", "tenths")))
ROWS = (500, 2000, 10_000)
POINTS = 80  # of a map, at its rows

GROUPED = {"rare": 3000, "uniform": 1000, "conf": 1000}  # rows
BIASES = {"rare": 1.8, "uniform": 1.12, "conf": 0.9}  # factor of the events in one of three groups
REPLICATES = 999


def run(report: Report, pool: Executor, laws: tuple[Law, ...], count: int) -> None:
    """Run all, with `count` data sets each."""
    maps(report, pool, laws or LAWS, count)
    regions(report, pool, count)
    groups(report, pool, count)


# ---------------------------------------------------------------- the map


def maps(report: Report, pool: Executor, laws: tuple[Law, ...], count: int) -> None:
    """Points of |z| > 1.96, and how often intervals miss, by whether a map shows the point."""
    for law in laws:
        for rows in ROWS:
            values = np.sum(shared(pool, count, _map, law, rows), axis=0)
            for near, (points, up, down, below, above) in zip(
                ("10 effective rows or more", "5 to 10"), values, strict=True
            ):
                if points < POINTS:
                    continue
                percent = 100 * np.array([up, down, below, above]) / points
                report.row(
                    what="map",
                    law=str(law),
                    rows=rows,
                    points=int(points),
                    near=near,
                    z_above=percent[0],
                    z_below=percent[1],
                    low_missed=percent[2],
                    high_missed=percent[3],
                    covered=100 - percent[2:].sum(),
                )
                if law.miscalibration == "calibrated" and near != "5 to 10":
                    title = f"map, {law}, {rows:,} rows, |z| > 1.96"
                    within(report, title, percent[:2].sum(), 2, 8, full_only=True)


def _map(law: Law, rows: int, first: int, last: int) -> Any:
    """Numbers of points, of z above and below 1.96, and of low and high ends that miss: (2, 5)."""
    from calibscale import from_arrays
    from calibscale.auditing.local_bias import local_bias

    out = np.zeros((2, 5))
    for number in range(first, last):
        rng = np.random.default_rng((SEED, 20, rows, number))
        true, p = law.probabilities(rng, rows)
        y, x = (rng.random(rows) < true).astype(np.int64), rng.normal(size=rows)
        source = from_arrays(probabilities=p, labels=y, covariates=x[:, None], binary=True)
        i = rng.permutation(rows)[:POINTS]
        bias_map = local_bias(source, ["x0"], at=(p[i], x[i]), min_rows=5, scheduler="serial")
        settings = bias_map.parameters
        K = np.exp(-0.5 * ((p[i][:, None] - p) / settings["prediction_bandwidth"]) ** 2)
        K *= np.exp(-0.5 * ((x[i][:, None] - x) / settings["covariate_bandwidth"]["x0"]) ** 2)
        bias = K @ (true - p) / K.sum(1)  # what the labels' noise is around
        many = bias_map.effective_rows >= 10
        for total, part in zip(out, (many, ~many & ~bias_map.masked), strict=True):
            z = bias_map.z[part]
            misses = (
                (bias_map.low > bias + 1e-12)[part].sum(),
                (bias_map.high < bias - 1e-12)[part].sum(),
            )
            total += [part.sum(), (z > 1.96).sum(), (z < -1.96).sum(), *misses]
    return out


# ---------------------------------------------------------------- regions of an audit


def regions(report: Report, pool: Executor, count: int) -> None:
    """Calibrated data sets with |z| > 4 in their most biased region."""
    values = np.concatenate(shared(pool, count, _regions))
    share = float(100 * np.mean(values > 4))
    report.row(what="first region", data_sets=count, above_4=share, median=float(np.median(values)))
    report.check("first region, |z| > 4, calibrated rare events", share, 5.0, "%", full_only=True)


def _regions(first: int, last: int) -> Any:
    """|z| of the first region of each data set."""
    from calibscale import KLCE
    from calibscale.auditing.audit import audit

    out = []
    for number in range(first, last):
        source = _grouped(Law("rare"), 3000, 1.0, (SEED, 21, number))
        result = audit(
            source,
            KLCE(("x", "group"), categorical=("group",)),
            n_replicates=19,
            scheduler="serial",
        )
        out.append(max((abs(region.z) for region in result.regions[:1]), default=0.0))
    return np.array(out)


# ---------------------------------------------------------------- groups of an audit


def groups(report: Report, pool: Executor, count: int) -> None:
    """Data sets with a group called biased, by Westfall & Young and by Holm, and by intervals."""
    for name, rows in GROUPED.items():
        for factor in (1.0, BIASES[name]):
            values = np.concatenate(shared(pool, count, _groups, name, rows, factor))
            young, holm, interval = (float(100 * share) for share in values.mean(axis=0))
            title = f"groups, {name}, " + (f"one times {factor}" if factor != 1 else "calibrated")
            report.row(
                what=title,
                rows=rows,
                data_sets=count,
                westfall_young=young,
                holm=holm,
                intervals=interval,
            )
            if factor == 1:
                most = 5 + 300 * (0.05 * 0.95 / count) ** 0.5
                report.check(f"{title}, rejected", young, most, "%")


def _groups(name: str, rows: int, factor: float, first: int, last: int) -> Any:
    """Whether a group is called biased by each of three: (data set, 3)."""
    from calibscale.auditing.group_tests import GroupSums, tested_groups
    from calibscale.data.covariates import Axis
    from calibscale.inference.multiple_testing import holm
    from calibscale.session import Session

    statistic = GroupSums(
        (Axis("x", 0, None, (-0.8, -0.25, 0.25, 0.8)), Axis("group", 1, (0.0, 1.0, 2.0))),
        "positive",
    )
    out = np.zeros((last - first, 3))
    for row, number in zip(out, range(first, last), strict=True):
        source = _grouped(Law(name), rows, factor, (SEED, 22, number))
        with Session.open(source, scheduler="serial") as session:
            names = ("x", "group")
            state = session.scan([statistic], covariates=names).groups[None][statistic]
            groups = tested_groups(session, names, statistic, REPLICATES, number, 30, 0.95, state)
        result = groups.listed
        row[0] = min(g.adjusted for g in result) <= 0.05 + 1e-12
        row[1] = min(holm([g.p_value for g in result])) <= 0.05 + 1e-12
        row[2] = any(g.low > 0 or g.high < 0 for g in result)
    return out


def _grouped(law: Law, rows: int, factor: float, seed: tuple[int, ...]) -> Any:
    """Rows with a multiple of the predicted events in group 2."""
    from calibscale import from_arrays

    rng = np.random.default_rng(seed)
    _, p = law.probabilities(rng, rows)
    x = np.column_stack([rng.normal(size=rows), rng.integers(0, 3, rows)])
    true = np.where(x[:, 1] == 2, np.clip(p * factor, 0, 1), p)
    return from_arrays(
        probabilities=p,
        labels=(rng.random(rows) < true).astype(np.int64),
        binary=True,
        covariates=x,
        covariate_names=["x", "group"],
    )
