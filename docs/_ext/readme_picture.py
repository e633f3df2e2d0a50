"""python docs/_ext/readme_picture.py: draw the picture of README.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibscale import from_arrays, reliability

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    p = rng.beta(0.8, 0.8, 4000)
    y = rng.random(4000) < 0.14 + 0.72 * p
    diagram = reliability(from_arrays(probabilities=p, labels=y, binary=True), bins=12)
    picture = Path(__file__).parent.parent / "_static" / "reliability.png"
    diagram.plot().figure.savefig(picture, dpi=90, facecolor="white", pil_kwargs={"optimize": True})
