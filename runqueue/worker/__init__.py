"""The worker: it claims runs, keeps their leases, runs their handlers and settles them."""

from runqueue.worker.context import RunContext, SyncRunContext
from runqueue.worker.worker import Worker

__all__ = ["RunContext", "SyncRunContext", "Worker"]
