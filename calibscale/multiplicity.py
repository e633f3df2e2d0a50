"""Many tests at once."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's (1979) adjusted p-values: max over p_(j) ≤ p of min(1, (m − j + 1) p_(j)).

    Those at most α are a family of rejections of which any is wrong with probability at most α.
    None stays None and is not counted.

    Examples
    --------
    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    known = [(p, i) for i, p in enumerate(p_values) if p is not None]
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for j, (p, i) in enumerate(sorted(known)):
        largest = max(largest, min(1.0, (len(known) - j) * p))
        adjusted[i] = largest
    return adjusted
