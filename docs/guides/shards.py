"""
Shards from an evaluation loop
==============================

An evaluation of a large model leaves one file of logits for each batch of jobs, and often a single
file of labels. This page evaluates such files where they are. They are mapped into memory block by
block, and never joined or copied.
"""

# %%
# Files of an evaluation
# ----------------------
# Twelve workers have each saved their logits in half precision. The numbers in the names say in
# which order the rows belong to the labels.

import tempfile
from pathlib import Path

import numpy as np

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
labels = []
for worker in range(12):
    logits = rng.normal(size=(500, 10))
    draws = (1.3 * logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    np.save(folder / f"logits_{worker}.npy", logits.astype(np.float16))
    labels.append(draws)
np.save(folder / "labels.npy", np.concatenate(labels))

# %%
# One source
# ----------
# A pattern names the shards, and ``labels`` names the file of the labels. Numbers in names are
# sorted as numbers: ``logits_2`` comes before ``logits_10``.

import calibscale

source = calibscale.from_file(folder / "logits_*.npy", labels=folder / "labels.npy")
print(source.rows, source.classes, source.name)
print(calibscale.evaluate(source, ["accuracy", "ece", "smooth_ece"]))

# %%
# These commands do the same. The shell may expand the pattern:
#
# .. code-block:: console
#
#    $ calibscale check logits_*.npy --labels labels.npy
#    $ calibscale ingest logits_*.npy predictions.zarr --labels labels.npy

# %%
# Arrays and batches
# ------------------
# :func:`calibscale.from_arrays` takes a list of arrays in the same way. These can be memory maps,
# or the batches of a loop. Labels, weights and covariates are lists as well, or single arrays.
# Their parts need not be as long as the parts of the logits.

paths = [folder / f"logits_{worker}.npy" for worker in range(12)]
maps = [np.load(path, mmap_mode="r") for path in paths]
arrays = calibscale.from_arrays(logits=maps, labels=labels)
same = calibscale.evaluate(arrays, "ece")["ece"].value
print(same == calibscale.evaluate(source, "ece")["ece"].value)

# %%
# Shards that do not fit
# ----------------------
# If a shard has another number of classes, or the numbers of rows and labels differ, the error
# names the files.

np.save(folder / "logits_12.npy", np.zeros((4, 9), np.float16))
try:
    calibscale.from_file(folder / "logits_*.npy", labels=folder / "labels.npy")
except calibscale.InvalidDataError as error:
    print(str(error).replace(f"{folder}/", ""))

# %%
# The error of an invalid row names the row and its file.

(folder / "logits_12.npy").unlink()
broken = np.load(folder / "logits_7.npy")
broken[42, 3] = np.nan
np.save(folder / "logits_7.npy", broken)
try:
    calibscale.evaluate(
        calibscale.from_file(folder / "logits_*.npy", labels=folder / "labels.npy"), "ece"
    )
except calibscale.InvalidDataError as error:
    print(str(error).replace(f"{folder}/", ""))
