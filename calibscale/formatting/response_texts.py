"""Mean responses beside the claims of predictions of a functional, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibscale.formatting.number_texts import number, shares_apart


def is_compared(details: Mapping[str, Any]) -> bool:
    """Whether the details of an estimate compare a mean response with predictions."""
    return "response" in details


def response_text(details: Mapping[str, Any]) -> str:
    """Mean response and mean prediction.

    Examples
    --------
    >>> details = {"response": "mean outcome", "predicted": 2.0, "observed": 2.5, "is_share": False}
    >>> response_text(details)
    'the mean outcome is 2.500, and 2 is predicted'
    """
    predicted, observed = details["predicted"], details["observed"]
    if details["is_share"]:
        texts = shares_apart(predicted, observed, decimals=1)
    else:
        texts = number(predicted, 4), number(observed, 4)
    return f"the {details['response']} is {texts[1]}, and {texts[0]} is predicted"


def range_text(details: Mapping[str, Any]) -> str:
    """Mean response and mean prediction of a range of predictions.

    Examples
    --------
    >>> details = {"response": "mean outcome", "predicted": 2.0, "observed": 2.5, "is_share": False}
    >>> range_text({**details, "order": "predictions", "low": 1.0, "high": 3.0})
    'at predictions between 1 and 3 the mean outcome is 2.500, and 2 is predicted'
    >>> range_text({**details, "order": "sizes", "low": 1.0, "high": 1.0})
    'at sizes of 1 the mean outcome is 2.500, and 2 is predicted'
    """
    low, high = number(details["low"], 3), number(details["high"], 3)
    places = f"of {low}" if low == high else f"between {low} and {high}"
    return f"at {details['order']} {places} {response_text(details)}"
