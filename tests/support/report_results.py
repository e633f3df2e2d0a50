"""JSON results of every command and of a night, for tests of reports."""

from __future__ import annotations

import json
import math
from datetime import date, timedelta
from functools import cache
from typing import Any

import numpy as np

import calibscale
from calibscale import ECE, KCE, TCE2Debiased, from_arrays
from calibscale.auditing.audit import audit
from calibscale.auditing.local_bias import local_bias
from calibscale.inference.multiple_testing import holm

DIAGRAM = ("notion", "level", "n", "ece", "tce2_debiased", "bins")
HOSTILE = ("<script>alert(1)</script>", "$x_1^2$", "\"&'", "a\x1b[31mb\u202ec", "</text><g id='x'>")
KINDS = (
    "evaluation",
    "reliability",
    "test",
    "tests",
    "selection",
    "bias",
    "bias at rows",
    "bias of predictions",
    "ranking",
    "audit",
    "power",
)

# ---------------------------------------------------------------- results of small arrays


def rows(
    n: int = 600, seed: int = 0, temperature: float = 1.0, groups: int = 3, names: Any = None
) -> Any:
    """Rows of 4 classes, with labels drawn from tempered predictions."""
    rng = np.random.default_rng(seed)
    logits = 1.6 * rng.normal(size=(n, 4))
    region = rng.integers(0, groups, n).astype(float)
    heat = np.where(region == 1, temperature * 1.4, temperature)[:, None]
    p = np.exp(logits / heat)
    p /= p.sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((n, 1))).sum(1)
    age = rng.uniform(20, 70, n)
    return from_arrays(
        logits=logits,
        labels=labels,
        covariates=np.column_stack([region, age]),
        covariate_names=list(names or ("region", "age")),
        weights=None,
    )


def as_json(result: Any) -> dict[str, Any]:
    return json.loads(json.dumps(result.to_dict(), allow_nan=False))


@cache
def command_results(region: str = "region", age: str = "age", model: str = "v3") -> dict[str, Any]:
    source = rows(names=(region, age), temperature=1.3)
    tempered = from_arrays(logits=source.values / 1.3, labels=source.labels)
    binary = from_arrays(
        probabilities=np.random.default_rng(1).uniform(0.1, 0.9, 300),
        labels=np.random.default_rng(2).integers(0, 2, 300),
        binary=True,
    )
    estimators = [ECE(), TCE2Debiased(), calibscale.CKCE(), KCE()]
    return {
        "evaluation": as_json(
            calibscale.evaluate(source, estimators, group_by=region, interval="jackknife")
        ),
        "reliability": as_json(calibscale.reliability(source, bins=10, group_by=region)),
        "test": as_json(calibscale.calibration_test(source, ECE(), n_replicates=49)),
        "tests": as_json(calibscale.calibration_test(source, [ECE(), KCE()], n_replicates=49)),
        "selection": as_json(
            calibscale.select(source, "top_label", ["bins", "ukkr", "temperature"], nested=True)
        ),
        "bias": as_json(local_bias(source, (age,), at="grid", points=15)),
        "bias at rows": as_json(local_bias(source, (region, age))),
        "bias of predictions": as_json(local_bias(binary, (), at="grid")),
        "ranking": as_json(
            calibscale.rank(
                {model: source, "v2": tempered},
                calibscale.CKCE(),
                subset_size=200,
                trials=20,
            )
        ),
        "audit": as_json(
            audit(
                source,
                (region, age),
                n_replicates=49,
                recalibrate=("temperature",),
                against=tempered,
            )
        ),
        "power": as_json(
            calibscale.power(
                binary,
                calibscale.Miscalibration(shift=0.1),
                max_rows=2000,
                trials=20,
                n_replicates=19,
            )
        ),
    }


# ---------------------------------------------------------------- a night of real estimates

NIGHT_ESTIMATORS = (
    ECE(),
    TCE2Debiased(),
    calibscale.CKCE(),
    calibscale.CWCE2(),
    calibscale.Brier(),
    calibscale.NLLDecomposition(),
)


@cache
def _night(
    days: int, groups: int, size: int, drift_from: int, names: tuple[str, ...]
) -> dict[str, Any]:
    """Result of a night after `days` days. Predictions are overconfident from `drift_from` on."""
    job, model, column = names
    dates = [(date(2026, 9, 22) + timedelta(days=i)).isoformat() for i in range(days)]
    distinct = {
        (k, overconfident): rows(
            size,
            seed=k,
            temperature=1.5 if overconfident else 1.0,
            groups=groups,
            names=(column, "age"),
        )
        for k in range(2)
        for overconfident in (False, True)
    }
    kinds = [(i % 2, i >= drift_from) for i in range(days)]  # days are repeated to save time
    sources = [distinct[kind] for kind in kinds]

    def merged(first: int, last: int) -> Any:
        joined = sources[first:last]
        return from_arrays(
            logits=np.concatenate([np.asarray(s.values) for s in joined]),
            labels=np.concatenate([np.asarray(s.labels) for s in joined]),
            covariates=np.concatenate([np.asarray(s.covariates) for s in joined]),
            covariate_names=[column, "age"],
        )

    evaluated = {
        kind: as_json(
            calibscale.evaluate(s, NIGHT_ESTIMATORS, group_by=column, interval="jackknife")
        )
        for kind, s in distinct.items()
    }
    daily = [evaluated[kind] for kind in kinds]
    spans = {"day": days - 1, "7d": max(0, days - 7), "30d": max(0, days - 30)}
    windows = []
    for name, first in spans.items():
        source = merged(first, days)
        result = as_json(
            calibscale.evaluate(source, NIGHT_ESTIMATORS, group_by=column, interval="jackknife")
        )
        diagram = as_json(calibscale.reliability(source))
        tests = as_json(
            calibscale.calibration_test(source, [ECE(), calibscale.CKCE()], n_replicates=19)
        )
        described = {
            "name": name,
            "first": dates[first],
            "last": dates[-1],
            "days": dates[first:],
            "missing": ["2026-10-03"] if name == "30d" else [],
            "damaged": ["the state of 2026-10-04 (v3) is damaged"] if name == "30d" else [],
            "n": result["n"],
            "results": result["results"],
            "tests": tests["tests"],
            "groups": [
                {"group": g["value"], "n": g["n"], "results": g["results"]}
                for g in result["groups"]["values"]
            ],
            "reliability": {key: diagram[key] for key in DIAGRAM},
        }
        windows.append(described)
    small = command_results()
    ranked = small["ranking"]
    thresholds = _thresholds(windows)
    alarms = _alarms(sources, dates, groups, column)
    breached = any(t["breached"] for t in thresholds) or alarms["alarm"]
    return {
        "schema": "calibscale.nightly/1",
        "job": job,
        "day": dates[-1],
        "model": model,
        "status": "breached" if breached else "fine",
        "created": "2026-11-21T02:00:00+00:00",
        "seconds": 12.3,
        "versions": {"calibscale": calibscale.__dict__.get("__version__", "0.1.0"), "numpy": "2"},
        "parameters": {
            "job": {"name": job, "windows": list(spans), "source": {"path": "p/{date}.zarr"}},
            "estimators": [
                {"estimator": e["estimator"], **e["parameters"]} for e in windows[0]["results"]
            ],
            "extras": [None, {}],
            "key": "0f3a",
        },
        "source": {
            "name": "p/2026-11-20.zarr",
            "kind": "logits",
            "rows": size,
            "classes": 4,
            "binary": False,
            "weighted": False,
        },
        "n": size,
        "n_dropped": 3,
        "n_unlabelled": 20,
        "dropped": {"probabilities do not sum to 1": 3},
        "group_by": column,
        "windows": windows,
        "thresholds": thresholds,
        "alarms": alarms,
        "drift": _drift(windows, daily),
        "trend": _trend(daily, dates),
        "ranking": {
            "window": "30d",
            "by": ranked["estimator"],
            "level": 0.95,
            "days": dates[-30:],
            "models": [
                {
                    "model": m["name"],
                    **{k: m[k] for k in ("value", "n", "interval", "rank", "rank_probabilities")},
                }
                for m in ranked["models"]
            ],
            "differences": [
                {
                    "a": d["better"],
                    "b": d["worse"],
                    "difference": d["value"],
                    "paired": d["paired"],
                    "low": d["interval"]["low"],
                    "high": d["interval"]["high"],
                    "p_value": d["p_value"],
                    "adjusted_p_value": d["p_adjusted"],
                }
                for d in ranked["differences"]
            ],
        },
        "selection": small["selection"],
        "bias": small["bias"],
        "notes": ["The clock went back: 2026-11-19 was written after 2026-11-20."],
    }


def _thresholds(windows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    thresholds = []
    limits = (
        ("tce2_debiased", "7d", "low", 0.01),
        ("ece", "day", "value", 0.3),
        ("ckce", "30d", "high", 0.4),
        ("ece", "7d", "value", 0.05),
    )
    for name, over, quantity, above in limits:
        window = next(w for w in windows if w["name"] == over)
        places = [(None, window["results"])]
        places += [(g["group"], g["results"]) for g in window["groups"][:3]]
        for group, results in places:
            estimate = next(e for e in results if e["estimator"] == name)
            interval = estimate["interval"] or {}
            seen = estimate["value"] if quantity == "value" else interval.get(quantity)
            threshold = {
                "name": f"{name}.{quantity} over {over} above {above}",
                "window": over,
                "group": group,
                "estimator": name,
                "quantity": quantity,
                "above": above,
                "below": None,
                "observed": seen,
                "breached": seen is not None and seen > above,
                "reason": None if seen is not None else "there is no interval",
            }
            thresholds.append(threshold)
    threshold = {
        "name": "p-value of ckce over day below 0.001",
        "window": "day",
        "group": None,
        "estimator": "ckce",
        "quantity": "p_value",
        "above": None,
        "below": 0.001,
        "observed": 0.05,
        "breached": False,
        "reason": None,
    }
    thresholds.append(threshold)
    return thresholds


def _alarms(sources: list[Any], dates: list[str], groups: int, column: str) -> dict[str, Any]:
    """E-processes over the days, of all rows and of every group."""
    slope = 1 / 1.4  # the bet: confidences are too high by this factor of the log-odds
    processes = []
    for group in (None, *range(groups)):
        gains = []
        for s in sources:
            keep = np.ones(s.rows, bool)
            if group is not None:
                keep = np.asarray(s.covariates)[:, 0] == group
            p = np.exp(np.asarray(s.values)[keep])
            p /= p.sum(1, keepdims=True)
            top, hit = p.max(1), p.argmax(1) == np.asarray(s.labels)[keep]
            odds, sign = np.log(top / (1 - top)), np.where(hit, -1.0, 1.0)
            bet = np.logaddexp(0, sign * odds) - np.logaddexp(0, sign * slope * odds)
            gains.append(bet.sum())
        processes.append((group, np.cumsum(gains)))
    logs = np.array([log for _, log in processes])
    combined = np.logaddexp.reduce(logs, axis=0) - math.log(len(logs))
    threshold, process_threshold = math.log(20), math.log(20 * len(processes))

    def since(log: Any, at: float) -> str | None:
        return next((day for day, v in zip(dates, log, strict=True) if v >= at), None)

    return {
        "level": 0.05,
        "alarm": since(combined, threshold) is not None,
        "since": since(combined, threshold),
        "first_day": dates[0],
        "days": dates,
        "log_evidence": combined.tolist(),
        "threshold": threshold,
        "process_threshold": process_threshold,
        "processes": [
            {
                "notion": "top_label",
                "group": None if group is None else float(group),
                "log_evidence": log.tolist(),
                "threshold": process_threshold,
                "alarm": since(log, process_threshold) is not None,
                "since": since(log, process_threshold),
            }
            for group, log in processes
        ],
    }


def _trend(daily: list[dict[str, Any]], dates: list[str]) -> dict[str, Any]:
    series = []
    estimates: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for result in daily:
        for e in result["results"]:
            estimates.setdefault((e["estimator"], e["notion"], None), []).append(e)
        for g in result["groups"]["values"]:
            for e in g["results"]:
                estimates.setdefault((e["estimator"], e["notion"], g["value"]), []).append(e)
    for (name, notion, group), series_of_days in estimates.items():
        if len(series_of_days) == len(dates):
            ends = [e["interval"] or {"low": None, "high": None} for e in series_of_days]
            line = {
                "estimator": name,
                "notion": notion,
                "group": group,
                "values": [e["value"] for e in series_of_days],
                "low": [i["low"] for i in ends],
                "high": [i["high"] for i in ends],
            }
            series.append(line)
    return {"days": dates, "n": [result["n"] for result in daily], "series": series}


def _drift(windows: list[dict[str, Any]], daily: list[dict[str, Any]]) -> dict[str, Any]:
    results = []
    later = next(w for w in windows if w["name"] == "7d")
    for now, then in zip(later["results"], daily[0]["results"], strict=True):
        error = math.hypot(*(e["interval"]["standard_error"] for e in (now, then)))
        difference = now["value"] - then["value"]
        change = {
            "estimator": now["estimator"],
            "notion": now["notion"],
            "group": None,
            "difference": difference,
            "low": difference - 2 * error,
            "high": difference + 2 * error,
            "level": 0.95,
            "p_value": math.erfc(abs(difference) / error / math.sqrt(2)),
        }
        results.append(change)
    adjusted = holm([change["p_value"] for change in results])
    for change, p in zip(results, adjusted, strict=True):
        change["adjusted_p_value"] = p
    baseline = {"first": "2026-09-22", "last": "2026-10-06", "n": 4500}
    return {"window": "7d", "baseline": baseline, "results": results}


def night(
    days: int = 12,
    groups: int = 3,
    size: int = 300,
    drift_from: int = 6,
    names: tuple[str, ...] = ("scores", "v3", "region"),
) -> dict[str, Any]:
    """A fresh copy of the result of a night."""
    return json.loads(json.dumps(_night(days, groups, size, drift_from, names)))
