"""Ingestion of files of predictions into a store, in batches of rows and resumable."""

from calibscale.data.ingest.ingestion import ingest

__all__ = ["ingest"]
