"""Verbs with the settings of KLCE as keywords of the call, so that tests can list them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from calibscale import KLCE
from calibscale.auditing.audit import Recalibration
from calibscale.auditing.audit import audit as _audit
from calibscale.auditing.local_bias import local_bias as _local_bias

SETTINGS = (
    *("prediction_bandwidth", "covariate_bandwidth", "categorical", "prediction_kernel"),
    *("covariate_kernel", "notion", "bandwidth_share"),
)


def with_settings(verb: Callable, names: tuple[str, ...]) -> Callable:
    @wraps(verb)
    def call(source: Any, covariates: Any, **options: Any) -> Any:
        settings = {name: options.pop(name) for name in names if name in options}
        # a name alone is one covariate
        covariates = (covariates,) if isinstance(covariates, str) else tuple(covariates)
        if "hold_out" in options:
            share = options.pop("hold_out")
            options["recalibrate"] = Recalibration(options.get("recalibrate", ()), share)
        return verb(source, KLCE(covariates, **settings), **options)

    return call


audit = with_settings(_audit, (*SETTINGS, "method"))
local_bias = with_settings(_local_bias, SETTINGS)
mapped = partial(local_bias, min_rows=2)
