"""
S3 and other object stores
==========================

Paths may be URLs of fsspec: ``s3://``, ``gs://``, ``http://``. ``storage_options`` are the options
of the file system, such as credentials; commands take ``--storage-option KEY=VALUE``, job files the
key ``storage_options``. This page runs against an S3 server on this machine.
"""

# %%
# A server and a bucket
# ---------------------
# Leave this out if you have a bucket.

import logging

import s3fs
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
host, port = server.get_host_and_port()
options = {"key": "example", "secret": "example", "endpoint_url": f"http://{host}:{port}"}
s3fs.S3FileSystem(**options).mkdir("predictions")

# %%
# A store in the bucket
# ---------------------

import numpy as np

import calibscale

rng = np.random.default_rng(0)
p = rng.beta(1, 3, 5000)
store = calibscale.LogitStore.create(
    "s3://predictions/rain.zarr", classes=2, kind="probabilities", binary=True,
    storage_options=options,
)  # fmt: skip
with store.writer() as writer:
    writer.append(p, (rng.random(5000) < p).astype(int))
print(calibscale.evaluate(store, ["confidence_gap", "ece"], interval=True))

# %%
# A parquet file in the bucket
# ----------------------------

import pandas as pd

frame = pd.DataFrame({"p": p, "rain": (rng.random(5000) < p**1.3).astype(int)})
frame.to_parquet("s3://predictions/rain.parquet", storage_options=options)
source = calibscale.from_file(
    "s3://predictions/rain.parquet", probabilities="p", labels="rain", storage_options=options
)
print(calibscale.evaluate(source, ["confidence_gap", "ece"], interval=True))

# %%
# Secrets, and servers that fail
# ------------------------------
# Results, reports and errors show a URL without its user, password and query. A server that does
# not answer, or answers that it cannot serve for the moment, is asked again. If it still fails, an
# ``UnavailableError`` is raised. :doc:`/reference/execution` lists the limits of time.

from calibscale.addresses import shown_address

print(shown_address("https://ann:password@example.org/rain.parquet?token=5f3a"))

# %%

server.stop()
