"""JSON Schemas (draft 2020-12) of results, and the validation of results read from JSON.

Both follow the declarations of the results (`calibscale.results`).  The files of this folder are
generated from them by ``python -m tests.support.schema_files``.
"""
