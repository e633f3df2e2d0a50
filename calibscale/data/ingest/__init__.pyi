from .ingestion import ingest as ingest
