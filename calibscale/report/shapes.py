"""What the JSON of each schema looks like, as far as a report reads it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Maybe:
    """The shape, or nothing."""

    shape: Any


@dataclass(frozen=True)
class Each:
    """An object of any keys whose values have the shape."""

    shape: Any


# str, float, int, bool, date (text of a day or a part of it); object (anything);
# [shape of each item]; (shapes of the items); {key: shape}; Maybe; Each
Shape: TypeAlias = Any

_HEAD: dict[str, Shape] = {
    "schema": str,
    "source": Maybe(
        {
            "name": Maybe(str),
            "kind": Maybe(str),
            "classes": Maybe(int),
            "class_names": Maybe([str]),
            "categories": Maybe(Each([str])),
        }
    ),
    "n": int,
    "n_dropped": Maybe(int),
    "n_unlabelled": Maybe(int),
    "dropped": Maybe(Each(int)),
    "seconds": Maybe(float),
    "versions": Maybe(Each(object)),
    "parameters": Maybe(Each(object)),
}
_INTERVAL = {
    "low": Maybe(float),
    "high": Maybe(float),
    "level": Maybe(float),
    "method": Maybe(str),
    "covers": Maybe(str),
}
_ESTIMATE: dict[str, Shape] = {
    "estimator": str,
    "notion": Maybe(str),
    "value": Maybe(float),
    "squared": Maybe(bool),
    "root": Maybe(float),
    "interval": Maybe(_INTERVAL),
    "approximation": Maybe({"kind": Maybe(str), "error": Maybe(float)}),
    "parameters": Maybe(Each(object)),
    "n": Maybe(int),
    "reason": Maybe(str),
}
ONE_TEST: dict[str, Shape] = {
    "statistic": str,
    "notion": Maybe(str),
    "value": Maybe(float),
    "p_value": Maybe(float),
    "null": Maybe(str),
    "replicates": Maybe(int),
    "exceedances": Maybe(int),
    "critical_value": Maybe(float),
    "seed": Maybe(int),
    "reason": Maybe(str),
    "parameters": Maybe(Each(object)),
    "null_distribution": Maybe({"mean": float, "quantiles": Each(float)}),
}
_BIN: dict[str, Shape] = {
    "lower": float,
    "upper": float,
    "count": int,
    "mean_p": Maybe(float),
    "frequency": Maybe(float),
    "interval": Maybe((float, float)),
    "consistency": Maybe((float, float)),
    "outside": Maybe(bool),
}
_CURVE: dict[str, Shape] = {
    "n": int,
    "ece": Maybe(float),
    "tce2_debiased": Maybe(float),
    "bins": [_BIN],
    "reason": Maybe(str),
}
_DIAGRAM: dict[str, Shape] = {
    **_CURVE,
    "notion": Maybe(str),
    "class": Maybe(int),
    "level": Maybe(float),
}
_CANDIDATE: dict[str, Shape] = {
    "estimator": str,
    "hyperparameter": Maybe(Each(object)),
    "fitted": Maybe(Each(object)),
    "risk": Maybe(float),
    "risk_standard_error": Maybe(float),
    "difference": Maybe(float),
    "difference_standard_error": Maybe(float),
    "distinguishable": Maybe(bool),
    "estimate": Maybe(float),
    "interval": Maybe(_INTERVAL),
    "root": Maybe(float),
    "reason": Maybe(str),
}
_SELECTION: dict[str, Shape] = {
    **_HEAD,
    "notion": Maybe(str),
    "candidates": [_CANDIDATE],
    "selected": _CANDIDATE,
    "nested": Maybe({"estimate": Maybe(float)}),
}
_BIAS: dict[str, Shape] = {
    **_HEAD,
    "notes": Maybe([str]),
    "n_masked": Maybe(int),
    "points": {
        "prediction": [Maybe(float)],
        "covariates": Each([Maybe(float)]),
        "bias": [Maybe(float)],
        "standard_error": [Maybe(float)],
        "low": Maybe([Maybe(float)]),
        "high": Maybe([Maybe(float)]),
        "z": Maybe([Maybe(float)]),
        "effective_rows": [Maybe(float)],
        "masked": [bool],
    },
}
_GROUP: dict[str, Shape] = {
    "group": str,
    "n": int,
    "mean_prediction": Maybe(float),
    "frequency": Maybe(float),
    "bias": Maybe(float),
    "standard_error": Maybe(float),
    "z": Maybe(float),
    "p_value": Maybe(float),
    "adjusted": Maybe(float),
    "low": Maybe(float),
    "high": Maybe(float),
}
_SCORES: dict[str, Shape] = {
    "method": str,
    "n": Maybe(int),
    "ece": Maybe(float),
    "brier": Maybe(float),
    "log_loss": Maybe(float),
    "klce": Maybe(float),
    "p_value": Maybe(float),
    "test": Maybe(ONE_TEST),
    "reason": Maybe(str),
    "note": Maybe(str),
}
_LOCAL_TESTS: dict[str, Shape] = {
    "joint": ONE_TEST,
    "calibration": ONE_TEST,
    "each": [{**ONE_TEST, "covariate": str, "adjusted": Maybe(float)}],
}
_PAIRED: dict[str, Shape] = {
    "estimator": str,
    "first": Maybe(float),
    "second": Maybe(float),
    "difference": Maybe(float),
    "interval": Maybe(_INTERVAL),
    "reason": Maybe(str),
}
_BIAS_CURVE: dict[str, Shape] = {
    "covariate": Maybe(str),
    "by": Maybe(str),
    "level": Maybe(float),
    "x": [float],
    "bias": [Maybe(float)],
    "standard_error": [Maybe(float)],
    "low": Maybe([Maybe(float)]),
    "high": Maybe([Maybe(float)]),
}

# ---------------------------------------------------------------- a night

_WINDOW: dict[str, Shape] = {
    "name": str,
    "first": Maybe(str),
    "last": Maybe(str),
    "days": Maybe([date]),
    "missing": Maybe([str]),
    "damaged": Maybe([str]),
    "n": Maybe(int),
    "results": Maybe([_ESTIMATE]),
    "tests": Maybe([ONE_TEST]),
    "groups": Maybe([{"group": Maybe(float), "n": Maybe(int), "results": [_ESTIMATE]}]),
    "reliability": Maybe(_DIAGRAM),
}
_THRESHOLD: dict[str, Shape] = {
    "name": str,
    "window": Maybe(str),
    "group": Maybe(float),
    "estimator": Maybe(str),
    "quantity": Maybe(str),
    "above": Maybe(float),
    "below": Maybe(float),
    "observed": Maybe(float),
    "breached": bool,
    "reason": Maybe(str),
}
_DRIFT: dict[str, Shape] = {
    "estimator": str,
    "notion": Maybe(str),
    "group": Maybe(float),
    "difference": Maybe(float),
    "low": Maybe(float),
    "high": Maybe(float),
    "level": Maybe(float),
    "p_value": Maybe(float),
    "adjusted_p_value": Maybe(float),
}
_PROCESS: dict[str, Shape] = {
    "notion": Maybe(str),
    "group": Maybe(float),
    "log_evidence": [Maybe(float)],
    "threshold": Maybe(float),
    "alarm": Maybe(bool),
    "since": Maybe(date),
}
_ALARMS: dict[str, Shape] = {
    "level": float,
    "alarm": bool,
    "since": Maybe(date),
    "first_day": Maybe(str),
    "days": [date],
    "log_evidence": [Maybe(float)],
    "processes": Maybe([_PROCESS]),
    "threshold": Maybe(float),
    "process_threshold": Maybe(float),
}
_SERIES: dict[str, Shape] = {
    "estimator": str,
    "notion": Maybe(str),
    "group": Maybe(float),
    "values": [Maybe(float)],
    "low": Maybe([Maybe(float)]),
    "high": Maybe([Maybe(float)]),
}
_NIGHT: dict[str, Shape] = {
    **_HEAD,
    "job": str,
    "day": date,
    "model": str,
    "status": str,
    "created": Maybe(str),
    "group_by": Maybe(str),
    "windows": [_WINDOW],
    "thresholds": Maybe([_THRESHOLD]),
    "drift": Maybe(
        {
            "window": Maybe(str),
            "baseline": Maybe({"first": Maybe(str), "last": Maybe(str), "n": Maybe(int)}),
            "results": [_DRIFT],
        }
    ),
    "alarms": Maybe(_ALARMS),
    "trend": Maybe({"days": [date], "n": Maybe([Maybe(int)]), "series": [_SERIES]}),
    "ranking": Maybe(
        {
            "window": Maybe(str),
            "by": Maybe(str),
            "level": Maybe(float),
            "models": [
                {
                    "model": str,
                    "value": Maybe(float),
                    "interval": Maybe(_INTERVAL),
                    "rank": Maybe(int),
                    "rank_probabilities": Maybe([float]),
                }
            ],
            "differences": Maybe(
                [
                    {
                        "a": str,
                        "b": str,
                        "difference": Maybe(float),
                        "low": Maybe(float),
                        "high": Maybe(float),
                        "p_value": Maybe(float),
                        "adjusted_p_value": Maybe(float),
                    }
                ]
            ),
        }
    ),
    "selection": Maybe(_SELECTION),
    "bias": Maybe(_BIAS),
    "notes": Maybe([str]),
}

SHAPES: dict[str, dict[str, Shape]] = {
    "nightly": _NIGHT,
    "evaluation": {
        **_HEAD,
        "results": [_ESTIMATE],
        "groups": Maybe(
            {
                "column": str,
                "values": [
                    {
                        "value": Maybe(float),
                        "name": Maybe(str),
                        "n": Maybe(int),
                        "results": [_ESTIMATE],
                    }
                ],
            }
        ),
    },
    "reliability": {
        **_HEAD,
        **_DIAGRAM,
        "groups": Maybe(
            {"column": str, "values": [{"value": Maybe(float), "name": Maybe(str), **_CURVE}]}
        ),
    },
    "test": {
        **_HEAD,
        "tests": Maybe([ONE_TEST]),
        "run": Maybe(Each(object)),
    },
    "selection": _SELECTION,
    "bias": _BIAS,
    "ranking": {
        **{key: shape for key, shape in _HEAD.items() if key not in ("source", "n")},
        "estimator": str,
        "notion": Maybe(str),
        "common": Maybe(Each(object)),
        "paired": Maybe(bool),
        "notes": Maybe([str]),
        "models": [
            {
                **{key: shape for key, shape in _ESTIMATE.items() if key != "estimator"},
                "name": str,
                "rank": Maybe(int),
                "rank_probabilities": Maybe([float]),
                "accuracy": Maybe(float),
                "brier": Maybe(float),
                "nll": Maybe(float),
                "n_unlabelled": Maybe(int),
                "dropped": Maybe(Each(int)),
            }
        ],
        "p_order": Maybe(float),
        "differences": [
            {
                "better": str,
                "worse": str,
                "value": Maybe(float),
                "interval": Maybe(_INTERVAL),
                "p_adjusted": Maybe(float),
                "distinguishable": Maybe(bool),
            }
        ],
        "agreement": Maybe(
            [
                {
                    "size": int,
                    "trials": int,
                    "same_ranking": Maybe(float),
                    "same_best": Maybe(float),
                    "kendall_tau": Maybe(float),
                }
            ]
        ),
    },
    "audit": {
        **_HEAD,
        "covariates": [str],
        "notion": Maybe(str),
        "level": float,
        "verdict": str,
        "p_value": Maybe(float),
        "miscalibrated": bool,
        "tests": _LOCAL_TESTS,
        "overall": Maybe(_GROUP),
        "groups": [_GROUP],
        "map": Maybe(
            {
                "regions": [
                    {
                        "prediction": Maybe(float),
                        "covariates": Each(Maybe(float)),
                        "bias": Maybe(float),
                        "standard_error": Maybe(float),
                        "low": Maybe(float),
                        "high": Maybe(float),
                        "z": Maybe(float),
                        "effective_rows": Maybe(float),
                    }
                ]
            }
        ),
        "curves": [_BIAS_CURVE],
        "recalibration": Maybe([_SCORES]),
        "against": Maybe(
            {
                "name": str,
                "tests": _LOCAL_TESTS,
                "first": _SCORES,
                "second": _SCORES,
                "differences": [_PAIRED],
            }
        ),
        "notes": Maybe([str]),
    },
    "power": {
        **_HEAD,
        "statistic": str,
        "bias": {
            "shift": float,
            "temperature": float,
            "where": Maybe({"covariate": str, "value": float}),
        },
        "level": float,
        "power": float,
        "rows": Maybe(int),
        "interval": Maybe((float, float)),
        "most_rows": Maybe(int),
        "curve": [{"rows": int, "rejections": int, "trials": int, "power": float}],
    },
}
