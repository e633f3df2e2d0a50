"""Walks of cumulative differences of overlapping segments, in order of the score."""

from __future__ import annotations

import numpy as np

from calibscale.compiled.jit import kernel


@kernel
def walk_ranges(differences, starts, crossing, members, totals, low, high):
    """Range of the walk of each segment: `low` and `high` are its extremes, `totals` its end.

    Axes:
        differences, crossing (a,) of atoms in order of the score
        starts (c + 1,) of atoms of equal score
        members (X, T) segments of each crossing, −1 for none
        totals, low, high (S,)
    """
    T = members.shape[1]
    for s in range(totals.size):
        totals[s] = low[s] = high[s] = 0.0
    for c in range(starts.size - 1):
        for i in range(starts[c], starts[c + 1]):
            x = crossing[i]
            for t in range(T):
                s = members[x, t]
                if s >= 0:
                    totals[s] += differences[i]
        # Rows of equal score are one step of the walk, so that their order does not matter.
        for i in range(starts[c], starts[c + 1]):
            x = crossing[i]
            for t in range(T):
                s = members[x, t]
                if s >= 0:
                    low[s] = min(low[s], totals[s])
                    high[s] = max(high[s], totals[s])


@kernel
def largest_cells(values, starts, crossing, members, inner, largest):
    """Largest sum of one cell of the score in each segment.

    Axes:
        starts, crossing, members: as in `walk_ranges`
        values (a,)
        inner, zeros, and largest (S,)
    """
    T = members.shape[1]
    for c in range(starts.size - 1):
        for i in range(starts[c], starts[c + 1]):
            for t in range(T):
                s = members[crossing[i], t]
                if s >= 0:
                    inner[s] += values[i]
                    largest[s] = max(largest[s], inner[s])
        for i in range(starts[c], starts[c + 1]):
            for t in range(T):
                s = members[crossing[i], t]
                if s >= 0:
                    inner[s] = 0.0


@kernel
def add_to_segments(sums, crossing, members, bins, out):
    """Sums of segments in bins of the score: the fields of `SegmentSums`, one after another.

    Axes:
        sums (6, a) of `AtomState`
        crossing, bins (a,)
        members (X, T)
        out (S, bins, 14)
    """
    column = np.empty(14)
    for i in range(crossing.size):
        w, w2 = sums[1, i], sums[2, i]
        if w <= 0.0:
            continue
        p = min(max(sums[3, i] / w, 0.0), 1.0)
        r = 1.0 - p
        # Moments of p and 1 − p of the atom's rows without the event, then of its rows with it.
        column[0], column[1], column[2], column[3] = sums[0, i], w, w2, sums[5, i]
        events = min(max(sums[3, i] - sums[4, i], 0.0), w)
        for k, part in ((4, w - events), (9, events)):
            squares = part * w2 / w  # Σw² in proportion to the part's share of the weight
            column[k], column[k + 1] = part * p, part * r
            column[k + 2], column[k + 3] = squares * p * p, squares * p * r
            column[k + 4] = squares * r * r
        for t in range(members.shape[1]):
            s = members[crossing[i], t]
            if s >= 0:
                for j in range(14):
                    out[s, bins[i], j] += column[j]
