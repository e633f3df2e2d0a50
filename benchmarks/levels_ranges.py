"""Level and power of the scan of ranges of an audit, beside its groups and a test of one range.

The z-test knows the range with the error, which no user does.  The groups are groups of the same
audit: five of each covariate and their crossings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

import numpy as np
from laws import Law
from measure import Report
from scipy.special import expit, logit
from scipy.stats import binom, norm
from simulated import SEED, shared

import calibscale as cs

ALPHA = 0.05
REPLICATES = 199
ROWS = 5000
SHIFT = 0.05  # of the probability, in the range
LEAST = 60.0  # percent of the data sets of a tenth of one covariate that are to be found


class Rows(NamedTuple):
    """Predictions, true probabilities, covariates, and whether each row has an error."""

    p: np.ndarray
    truth: np.ndarray
    x: np.ndarray
    wrong: np.ndarray
    weights: np.ndarray | None = None
    cluster: np.ndarray | None = None


Draw = Callable[[np.random.Generator], Rows]
Scores = Callable[[np.random.Generator, int], np.ndarray]


# ---------------------------------------------------------------- laws


def _beta(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.beta(2.0, 2.0, rows)


def _rare(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.beta(0.5, 60.0, rows)


def _extreme(rng: np.random.Generator, rows: int) -> np.ndarray:
    return expit(2.5 * rng.normal(size=rows))


def _atoms(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.choice([0.0, 0.1, 0.35, 0.8, 1.0], rows)


def _covariates(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Uniform columns. The third is rounded to eight values."""
    x = rng.uniform(size=(rows, columns))
    x[:, 2:3] = np.floor(8.0 * x[:, 2:3])
    return x


def _calibrated(
    scores: Scores, rows: int = ROWS, columns: int = 1, weighted: bool = False, clusters: int = 0
) -> Draw:
    def draw(rng: np.random.Generator) -> Rows:
        p, x = scores(rng, rows), _covariates(rng, rows, columns)
        weights = rng.exponential(size=rows) if weighted else None
        cluster = rng.integers(0, clusters, rows).astype(float) if clusters else None
        return Rows(p, p, x, np.zeros(rows, bool), weights, cluster)

    return draw


def _wrong(
    low: float,
    high: float,
    columns: int = 1,
    shift: float = SHIFT,
    scores: Scores = _beta,
    of_logits: bool = False,
) -> Draw:
    """Error where the first covariate is in a range."""

    def draw(rng: np.random.Generator) -> Rows:
        p, x = scores(rng, ROWS), _covariates(rng, ROWS, columns)
        wrong = (x[:, 0] > low) & (x[:, 0] <= high)
        moved = expit(logit(p) + shift) if of_logits else np.clip(p + shift, 0.0, 1.0)
        return Rows(p, np.where(wrong, moved, p), x, wrong)

    return draw


CALIBRATED: dict[str, Draw] = {
    "one covariate": _calibrated(_beta),
    "four covariates": _calibrated(_beta, columns=4),
    "rare events": _calibrated(_rare),
    "extreme predictions": _calibrated(_extreme),
    "atoms, 0 and 1 included": _calibrated(_atoms),
    "300 rows": _calibrated(_beta, rows=300),
    "weights": _calibrated(_beta, weighted=True),
    "200 clusters": _calibrated(_beta, rows=2000, clusters=200),
}
TENTHS = ("top tenth, too low", "top tenth, too high")  # of the bound `LEAST`
WRONG: dict[str, Draw] = {
    TENTHS[0]: _wrong(0.9, 1.0),
    TENTHS[1]: _wrong(0.9, 1.0, shift=-SHIFT),
    "top tenth of one of four covariates": _wrong(0.9, 1.0, columns=4),
    "sixth tenth": _wrong(0.5, 0.6),
    "last twentieth": _wrong(0.95, 1.0),
    "last fifth": _wrong(0.8, 1.0),
    "fifth in the middle": _wrong(0.45, 0.65),
    "top tenth, logits": _wrong(0.9, 1.0, shift=0.25, of_logits=True),
    "top tenth, extreme predictions": _wrong(0.9, 1.0, shift=0.4, scores=_extreme, of_logits=True),
}


# ---------------------------------------------------------------- data sets


def run(report: Report, pool: Executor, laws: tuple[Law, ...], count: int) -> None:
    """Scan `count` calibrated data sets of each law, and a fifth as many of each alternative."""
    for law in CALIBRATED:
        rejected = _rejected(pool, law=law, sets=count)
        report.row(what="level", law=law, sets=count, **_shares(rejected, count))
        tail = 0.005 / len(CALIBRATED)
        low, high = 100 * binom.ppf([tail, 1.0 - tail], count, ALPHA) / count
        share = 100 * rejected["scan"] / count
        report.check(f"{law}: level", share, high, "%", full_only=True)
        report.check(f"{law}: level", share, low, "%", at_least=True, full_only=True)
    for columns in (1, 4):
        power, z_power = _best(columns)
        report.row(what="best test", covariates=columns, power=100 * power, z_test=100 * z_power)
    sets = max(1, count // 5)
    tenths = []
    for law in WRONG:
        rejected = _rejected(pool, law=law, sets=sets)
        report.row(what="power", law=law, sets=sets, **_shares(rejected, sets))
        if law in TENTHS:
            tenths.append(100 * rejected["scan"] / sets)
    name = "top tenth of one covariate, found"
    report.check(name, float(np.mean(tenths)), LEAST, "%", at_least=True, full_only=True)


def _best(columns: int, sets: int = 100_000) -> tuple[float, float]:
    """Largest mean power of a test against a shift of an outer tenth of one of several covariates.

    The test knows the size of the shift and weights rows by 1/(p(1 − p)), which is best, but not
    the sign, the end, and the covariate: it uses the mean likelihood ratio of all of them.
    The second number is the power of a z-test that knows end and covariate, with equal weights.
    """
    rng = np.random.default_rng(SEED)
    p = _beta(rng, 10**6)
    variance = p * (1.0 - p)
    size = SHIFT * np.sqrt(0.1 * ROWS * np.mean(1.0 / variance))
    plain = SHIFT * np.sqrt(0.1 * ROWS / variance.mean())
    noise = rng.normal(size=(sets, 2 * columns))
    wrong = rng.normal(size=(sets, 2 * columns)) + size * np.eye(2 * columns)[0]
    ratios = [np.cosh(size * z).mean(axis=1) for z in (noise, wrong)]
    power = np.mean(ratios[1] > np.quantile(ratios[0], 1.0 - ALPHA))
    return float(power), float(norm.sf(norm.isf(ALPHA / 2) - plain))


def _shares(rejected: Counter[str], sets: int) -> dict[str, float]:
    return {name: 100 * number / sets for name, number in rejected.items()}


def _rejected(pool: Executor, law: str, sets: int) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in shared(pool, sets, _rejections, law):
        total.update(part)
    return total


def _rejections(law: str, first: int, last: int) -> Counter[str]:
    """Data sets first … last − 1 that the scan rejects, the groups, and a z-test of the range."""
    from calibscale.auditing.group_tests import GroupSums, tested_groups
    from calibscale.auditing.range_scan import ScanSums, scanned_ranges
    from calibscale.session import Session
    from calibscale.statistics.segments import axes_of

    rejected: Counter[str] = Counter(scan=0, groups=0)
    for number in range(first, last):
        rng = np.random.default_rng([SEED, number, *map(ord, law)])
        rows = {**CALIBRATED, **WRONG}[law](rng)
        y = rng.random(len(rows.p)) < rows.truth
        names = tuple(f"x{j}" for j in range(rows.x.shape[1]))
        columns = [rows.x] if rows.cluster is None else [rows.x, rows.cluster]
        all_names = names if rows.cluster is None else (*names, "cluster")
        source = cs.from_arrays(
            probabilities=rows.p,
            labels=y.astype(int),
            binary=True,
            weights=rows.weights,
            covariates=np.column_stack(columns),
            covariate_names=list(all_names),
        )
        with Session.open(source, scheduler="serial") as opened:
            session = opened.by_cluster(None if rows.cluster is None else "cluster")
            axes = axes_of(session.profile, names, "positive", (), 5)
            groups = GroupSums(tuple(axis for axis in axes if len(axis) > 1), "positive")
            scan = ScanSums.of(session, names, "positive", ())
            states = session.scan([groups, *scan.needs], covariates=names).groups[None]
            settings = REPLICATES, number, 30, 1.0 - ALPHA
            ranges = scanned_ranges(session, names, scan, states, *settings)
            listed = tested_groups(session, names, groups, *settings, states[groups]).listed
        assert ranges.p_value is not None
        rejected["scan"] += ranges.p_value <= ALPHA + 1e-12
        rejected["groups"] += min(group.adjusted or 0.0 for group in listed) <= ALPHA + 1e-12
        if rows.wrong.any():
            p = rows.p[rows.wrong]
            z = (y[rows.wrong] - p).sum() / np.sqrt((p * (1.0 - p)).sum())
            rejected["z_test"] += 2 * norm.sf(abs(z)) <= ALPHA
    return rejected
