"""Each database operation, once: a function on a `sqlalchemy.Connection`, inside the transaction that the caller began.

The async side calls the same functions through `run_sync`.
"""
