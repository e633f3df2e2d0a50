"""Sums over all pairs: rates against C, pyKeOps and BLAS, series, exact CKCE, reported errors."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import Measurement, NotInstalled, Report, Settings, measure, measure_in_turn
from pair_work import BANDWIDTH, binary, dirichlet, klce

RUNS = 5  # of what takes a second or less
SEEDS = 100
C_FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC")


def run(settings: Settings) -> Report:
    report = Report("pairs", settings)
    _rates(report, settings)
    _gram(report, settings)
    _series(report, settings)
    _exact_ckce(report, settings)
    folder = os.environ.get("CALIBSCALE_DATA")
    if folder:
        _golden(report, Path(folder), settings)
    else:
        report.note("no reference values: CALIBSCALE_DATA names no folder with data/ and golden/")
    _stated_errors(report, settings)
    return report


# ---------------------------------------------------------------- rates


def _rates(report: Report, settings: Settings) -> None:
    """Pairs per second of the pair pass and of others, all in turn: ratios are of one round.

    Each runs in a separate process: a C loop built with -ffast-math switches the process that loads
    it to flush subnormal numbers to zero.
    """
    n = settings.rows(60_000)
    libraries, compiler = _compiled(report, settings.folder)
    pieces: dict[str, tuple[Any, ...]] = {
        name: ("pair_work:c_loop", n, path, "scaled" in name) for name, path in libraries.items()
    }
    for precision in ("float32", "float64"):
        for threads, label in ((2, "2 threads"), (1, "1 thread")):
            label_of_piece = f"{precision}, {label}"
            pieces[f"Gaussian in 3-D, {label_of_piece}"] = (
                "pair_work:gaussian_pairs",
                n,
                precision,
                threads,
            )
            pieces[f"JKCE, K = 10, {label_of_piece}"] = (
                "pair_work:jkce_pairs",
                n,
                10,
                precision,
                threads,
            )
    pieces["Gaussian in 3-D, float32, whole evaluate"] = ("pair_work:whole", n, "klce")
    pieces["JKCE, K = 10, float32, whole evaluate"] = ("pair_work:whole", n, "jkce")
    result = measure_in_turn(pieces, runs=1 if settings.small else RUNS)
    pairs = n * (n - 1) / 2
    for way, m in result.items():
        compiled = {"compiler": compiler} if way in libraries else {}
        report.row(what=way, rows=n, pairs_per_second=pairs / m.median, **compiled)
    ours = "Gaussian in 3-D, float32, 2 threads"
    value, seconds = result[ours].value, result[ours].median
    for name in libraries:
        error = abs(result[name].value / value - 1)
        report.check(f"{name}, distance of the sum from ours", error, 1e-5)
        report.row(what=f"{ours}, rate against {name}", times=_ratio(result, name, ours))
    if libraries:
        # the scaled one is for comparison
        for name, bound in (("C, expf", 1.1), ("C, our polynomial", 1.1)):
            report.check(
                f"{ours}, rate against {name}",
                _ratio(result, name, ours),
                bound,
                "times",
                at_least=True,
                full_only=True,
            )
        many = "JKCE, K = 10, float32, 2 threads"
        report.check(
            f"{many}, rate against C, expf",
            _ratio(result, "C, expf", many),
            0.7,
            "times",
            at_least=True,
            full_only=True,
        )
    for kind in ("Gaussian in 3-D", "JKCE, K = 10"):
        single, double = f"{kind}, float32, 1 thread", f"{kind}, float32, 2 threads"
        report.row(
            what=f"{kind}, float32, 2 threads against 1", times=_ratio(result, single, double)
        )
    _keops(report, settings, n, value, seconds)


def _keops(report: Report, settings: Settings, n: int, value: float, seconds: float) -> None:
    """The Gaussian in 3-D by pyKeOps, against our value and seconds."""
    pairs, title = n * (n - 1) / 2, "Gaussian in 3-D, pyKeOps on the CPU"
    try:
        runs = settings.runs
        k = measure(
            "pair_work:keops",
            n,
            runs=runs,
            python=settings.peers_python,
            environment={"OMP_NUM_THREADS": "2"},
        )
    except (NotInstalled, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        report.row(what=title, rows=n, pairs_per_second=None, missing=reason)
        return
    # it has no loop over half of the pairs; the pairs of a row with itself are subtracted
    result = (k.value["sum"] - k.value["diagonal"]) / 2
    report.row(
        what=title,
        rows=n,
        pairs_per_second=pairs / k.median,
        version=k.value["version"],
        ordered_pairs_per_second=n * n / k.median,
    )
    report.check(f"{title}, distance of the sum from ours", abs(result / value - 1), 1e-5)
    report.check(
        "Gaussian in 3-D, float32, 2 threads, rate against pyKeOps",
        k.median / seconds,
        40.0,
        "times",
        at_least=True,
        full_only=True,
    )


def _ratio(result: dict[str, Measurement], first: str, second: str) -> float:
    """Median over the rounds of the time of the first against the time of the second."""
    rounds = zip(result[first].seconds, result[second].seconds, strict=True)
    return statistics.median(a / b for a, b in rounds)


def _compiled(report: Report, folder: Path) -> tuple[dict[str, str], str]:
    """C loops with expf and with our polynomial, in two ways, and their compiler."""
    from calibscale.compiled.elementary import EXP2_SINGLE

    gcc = shutil.which("gcc")
    if gcc is None:
        report.note("no C loops: there is no gcc")
        return {}, ""
    polynomial = [f"-DC{i}={float(EXP2_SINGLE[i]).hex()}f" for i in range(1, 6)]
    libraries = {}
    ways: tuple[tuple[str, list[str]], ...] = (
        ("C, expf", []),
        ("C, our polynomial", ["-DOWN", *polynomial]),
        ("C, our polynomial, coordinates scaled for it", ["-DOWN", "-DSCALED", *polynomial]),
    )
    for number, (name, options) in enumerate(ways):
        path = str(folder / f"pair_sum_{number}.so")
        source = str(Path(__file__).with_name("pair_sum.c"))
        command = [gcc, *C_FLAGS, *options, "-o", path, source, "-lm"]
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode:
            report.note(f"no C loops: gcc failed: {process.stderr.strip().splitlines()[-1]}")
            return {}, ""
        libraries[name] = path
    version = subprocess.run([gcc, "--version"], capture_output=True, text=True).stdout
    return libraries, version.splitlines()[0] + " " + " ".join(C_FLAGS[:4])


def _gram(report: Report, settings: Settings) -> None:
    n = settings.rows(20_000)
    ours = "JKCE, K = 100, float32, 2 threads"
    pieces = {ours: ("pair_work:jkce_pairs", n, 100, "float32", 2)}
    for how in ("Numba", "two Python threads"):
        pieces[f"Gram product alone, {how}"] = ("pair_work:gram", n, 100, how)
    result = measure_in_turn(pieces, runs=1 if settings.small else RUNS)
    for way, m in result.items():
        report.row(what=way, rows=n, pairs_per_second=n * (n - 1) / 2 / m.median)
    _, *bare = result
    ratio = max(_ratio(result, ours, way) for way in bare)
    title = f"{ours}, time against the bare Gram product of the same rows"
    report.check(title, ratio, 2.0, "times", full_only=True)


# ---------------------------------------------------------------- the Fourier series


def _series(report: Report, settings: Settings) -> None:
    n, few = settings.rows(1_000_000), 20_000
    for covariates, name, bound in ((1, "1 covariate", 0.6), (2, "2 covariates", 2.0)):
        title = f"KLCE by a series, {name}"
        m = measure("pair_work:series", n, covariates, runs=1 if settings.small else RUNS)
        report.row(what=title, rows=n, seconds=m.median, cpu_seconds=m.cpu_median, **m.value)
        report.check(f"{title}, {n:,} rows in memory", m.median, bound, "s")
        m = measure("pair_work:series_error", few, covariates, runs=1)
        report.check(f"{title}, {few:,} rows, distance from tiles", m.value, 1e-14)
    n = settings.rows(10_000_000)
    store = _written(settings.folder / f"uniform-{n}.zarr", n)
    for covariates, name in ((1, "1 covariate"), (2, "2 covariates")):
        title = f"KLCE by a series, {name}, from a store"
        m = measure("pair_work:series", n, covariates, store, runs=settings.runs)
        report.row(
            what=title,
            rows=n,
            seconds=m.median,
            cpu_seconds=m.cpu_median,
            peak_mb=m.peak / 1e6,
            **m.value,
        )
        report.check(f"{title}, {n:,} rows", m.median, 15.0, "s")
        report.check(f"{title}, peak memory", m.peak / 1e6, 1000.0, "MB")


def _written(path: Path, n: int) -> str:
    """A store of uniform predictions and two covariates."""
    from calibscale import LogitStore, StoreError

    try:
        if LogitStore.open(path).rows == n:
            return str(path)
    except StoreError:
        pass
    store = LogitStore.create(
        path,
        classes=2,
        kind="probabilities",
        binary=True,
        covariate_names=("x0", "x1"),
        expected_rows=n,
        overwrite=True,
    )
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for start in range(0, n, 500_000):
            p, x, u = (rng.random((min(500_000, n - start), d)) for d in (1, 2, 1))
            writer.append(p, (u < p * p)[:, 0].astype(np.int64), covariates=x)
    return str(path)


# ---------------------------------------------------------------- exact values


def _golden(report: Report, folder: Path, settings: Settings) -> None:
    from calibscale import CKCE, JKCE, KLCE, JKCEBiased, RandomFourier, evaluate, from_arrays

    golden = json.loads((folder / "golden" / "klce.json").read_text())
    for name, expected in golden.items():
        if settings.small and name not in ("heart_lr", "compas_rf"):
            continue
        with np.load(folder / "data" / f"{name}.npz") as data:
            names = tuple(map(str, data["x_names"]))
            source = from_arrays(
                probabilities=data["p"],
                labels=data["y"].astype(np.int64),
                covariates=data["x"],
                covariate_names=names,
                binary=True,
            )
        # exp(−((p − p')/w)²)·exp(−gamma·|x − x'|²)
        widths = expected["prob_width"] / np.sqrt(2), 1 / np.sqrt(2 * expected["gamma"])
        for method, tolerance in (("tiles", 1e-12), ("spectral", 1e-12)):
            for key, norm in (("eq4", "pairs"), ("kite_value", "kernel_sum")):
                estimator = KLCE(
                    names, *widths, method=method, tolerance=tolerance, normalization=norm
                )
                value = evaluate(source, [estimator]).estimates[0].value
                error = abs(value / expected[key] - 1)
                title = f"{name}, KLCE, {key}, {method}, relative error"
                if method == "tiles":
                    report.check(title, error, 1e-10)
                else:
                    report.row(what=title, error=error)
    golden = json.loads((folder / "golden" / "first_2000_rows.json").read_text())
    features = RandomFourier(bandwidth=1.0)
    exact = {
        "ckce": CKCE(features, method="exact"),
        "jkce_unbiased": JKCE(features, method="tiles"),
        "jkce_biased": JKCEBiased(features, method="tiles"),
    }
    for name in ["cifar10_resnet50"] if settings.small else list(golden):
        with np.load(folder / "data" / f"{name}.npz") as data:
            source = from_arrays(
                logits=data["logits"][:2000].astype(np.float64),
                labels=data["labels"][:2000],
            )
        scores = evaluate(source, exact.values()).estimates
        for key, estimate in zip(exact, scores, strict=True):
            error = abs(estimate.value / golden[name][key] - 1)
            report.check(f"{name}, {key}, every pair, relative error", error, 1e-10)


def _exact_ckce(report: Report, settings: Settings) -> None:
    n = settings.rows(100_000)
    m = measure("pair_work:exact_ckce", settings.store(n, 10), settings.store(1000, 10), runs=1)
    report.row(
        what="CKCE, exact, K = 10",
        rows=n,
        seconds=m.median,
        cpu_seconds=m.cpu_median,
        peak_mb=m.peak / 1e6,
        **m.value,
    )
    report.check(f"CKCE, exact, {n:,} x 10", m.median, 240.0, "s")


# ---------------------------------------------------------------- stated errors


def _stated_errors(report: Report, settings: Settings) -> None:
    """How often the exact value is within the stated error, and that it is not too large."""
    from calibscale import JKCE, OptionError, RandomFourier, evaluate

    many, local = dirichlet(5000, 10), binary(5000, 2)  # more than all landmarks and their sample
    few = binary(1000, 2) if settings.small else local
    features = RandomFourier(bandwidth=BANDWIDTH)
    cases: tuple[tuple[str, Any, Any, Callable[[int], Any]], ...] = (
        (
            "JKCE, 20,000 sampled pairs",
            many,
            JKCE(features, method="tiles"),
            lambda seed: JKCE(features, method="pairs", n_pairs=20_000, seed=seed),
        ),
        (
            "KLCE, 1,000 random features",
            few,
            klce(2, method="tiles"),
            lambda seed: klce(2, method="features", seed=seed),
        ),
        (
            "KLCE, 200 landmarks",
            local,
            klce(2, method="tiles"),
            lambda seed: klce(2, method="nystrom", n_features=200, seed=seed),
        ),
    )
    for title, source, exact, sampled in cases:
        # landmarks take a tenth of 1 s
        seeds = 40 if settings.small and "landmarks" in title else SEEDS
        truth = evaluate(source, [exact]).estimates[0].value
        try:
            scores = evaluate(source, [sampled(seed) for seed in range(seeds)]).estimates
        except OptionError as error:
            report.note(f"{title}: not run: {error}")
            continue
        errors = np.array([e.value for e in scores]) - truth
        stated = np.array([e.approximation.error for e in scores])
        covered = 100 * float(np.mean(np.abs(errors) <= stated))
        rms = float(np.sqrt(np.mean(errors**2)))
        report.check(
            f"{title}, stated error covers", covered, 90, f"% of {seeds} seeds", at_least=True
        )
        ratio = float(np.median(stated)) / rms
        report.check(f"{title}, median stated error / true RMS", ratio, 3.0)
