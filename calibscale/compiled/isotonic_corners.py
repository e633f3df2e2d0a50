"""Values of isotonic regression at a row that is added to the rows of each score in turn."""

from __future__ import annotations

from calibscale.compiled.jit import inlined, kernel


@inlined()
def _turn(ax, ay, bx, by, cx, cy):
    """Above 0 if the way from a over b to c turns to the left, and 0 if it is straight."""
    return (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)


@kernel
def set_upper_values(weights, events, unit, x, y, corners, out):
    """Set the value at each score of the isotonic regression with one further event there.

    The values are slopes of the greatest convex minorant of the cumulative sums.  The event moves
    from the first score to the last, and each point of the sums becomes a corner at most twice.
    These are Algorithms 1 and 2 of Vovk, Petej & Fedorova (2015).

    Axes:
        weights, events (k,) of the rows of each score, in the order of the scores
        unit: weight of the event that is added
        x, y (k + 2,), corners (k + 2,): work space
        out (k,)
    """
    k = weights.size
    # The first point is before the event, the second one behind it.
    x[0], y[0] = -unit, -unit
    x[1], y[1] = 0.0, 0.0
    for i in range(k):
        x[i + 2] = x[i + 1] + weights[i]
        y[i + 2] = y[i + 1] + events[i]
    # Corners of the minorant from the right, so that the leftmost is the last of them.
    size = 0
    for i in range(k + 1, -1, -1):
        while size > 1:
            b, c = corners[size - 1], corners[size - 2]
            if _turn(x[i], y[i], x[b], y[b], x[c], y[c]) > 0.0:
                break
            size -= 1
        corners[size] = i
        size += 1
    for i in range(k):
        a, b = corners[size - 1], corners[size - 2]
        out[i] = (y[b] - y[a]) / (x[b] - x[a])
        # The event moves behind score i: the point before the event follows that score.
        x[i + 1] = x[i + 2] - unit
        y[i + 1] = y[i + 2] - unit
        if _turn(x[a], y[a], x[b], y[b], x[i + 1], y[i + 1]) >= 0.0:
            continue
        size -= 1
        while size > 1:
            b, c = corners[size - 1], corners[size - 2]
            if _turn(x[i + 1], y[i + 1], x[b], y[b], x[c], y[c]) > 0.0:
                break
            size -= 1
        corners[size] = i + 1
        size += 1
