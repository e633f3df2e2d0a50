"""Source of the fixture `arrays`, and the tolerance of its sums."""

from __future__ import annotations

import calibscale as cs

# Means of 400 products of float64 numbers, in another order: a few hundred roundings of 1e-16.
CLOSE = dict(rel=1e-12, abs=1e-14)


def logit_source(arrays, weighted=False):
    """Source of the fixture `arrays`."""
    return cs.from_arrays(
        logits=arrays["logits"],
        labels=arrays["labels"],
        weights=arrays["weights"] if weighted else None,
    )
