"""Tables and files of predictions: their readers, sources of their columns, and ingestion."""

from calibscale.data.ingest.ingestion import ingest

__all__ = ["ingest"]
