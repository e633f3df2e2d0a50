"""
PyTorch evaluation loop
=======================

Logits of an evaluation loop go to a store, batch by batch; nothing is kept in memory. A store
can be evaluated again later, by other estimators and groups, without the model.
"""

# %%
# A network that is trained too long
# ----------------------------------

import tempfile

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(3000, 10)
y = (X[:, :3] + 0.8 * torch.randn(3000, 3)).argmax(dim=1)
train, test = slice(0, 600), slice(600, None)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(150):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(X[train]), y[train]).backward()
    optimizer.step()

# %%
# The loop
# --------
# `append` takes tensors, NumPy arrays, and anything else that speaks DLPack. A loop that fails
# leaves the store unfinished, and an unfinished store is not evaluated.

import calibscale

loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(X[test], y[test]), batch_size=256
)
store = calibscale.LogitStore.create(f"{tempfile.mkdtemp()}/test.zarr", classes=3)
with torch.no_grad(), store.writer() as writer:
    for inputs, labels in loader:
        writer.append(model(inputs), labels)

# %%
# Both the gap and its cause: accuracy is far below confidence.

names = ["accuracy", "confidence_gap", "ece", "nll"]
print(calibscale.evaluate(store, names, interval="jackknife"))

# %%
# Without a store
# ---------------
# An `Accumulator` keeps sums and no rows, for a number after each epoch. Accumulators can be
# pickled and merged: ``examples/ddp_accumulator.py`` has an evaluation of several processes.

accumulator = calibscale.Accumulator(["confidence_gap", "ece"], classes=3)
with torch.no_grad():
    for inputs, labels in loader:
        accumulator.update(logits=model(inputs), labels=labels)
accumulator.compute().metrics()

# %%
# The diagram
# -----------

ax = calibscale.reliability(store).plot()
