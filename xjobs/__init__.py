"""xjobs: a durable job queue on Postgres, with an in-memory twin.

Declare a job with `@job`, put a queue in use with `use(Queue.connect(...))`, and enqueue through the job's handle. All
public names are here; the rest of the package may change.
"""

from __future__ import annotations

from xjobs.context import AsyncContext, Context
from xjobs.errors import (
    Aborted,
    ClaimQueuesEmpty,
    ConnectionUnsupported,
    DeclarationInvalid,
    Draining,
    DrainStopped,
    DriverUnavailable,
    Error,
    IdempotencyRequired,
    IdInvalid,
    InputInvalid,
    Invariant,
    JobCancelled,
    JobDuplicate,
    JobNotCancellable,
    JobNotFound,
    JobNotPromotable,
    JobNotRemovable,
    JobNotRequeueable,
    JobTimeout,
    JobUnknown,
    LeaseLost,
    OnSettledFailed,
    PageInvalid,
    RateLimited,
    RowStateUnknown,
    SchemaMissing,
    SlotLost,
    StepDuplicate,
    StepNotAwaited,
    TenantRequired,
    TransactionAborted,
    TransactionConflict,
    WouldBlock,
)
from xjobs.jobs import NO_KEY, Call, JobHandle, job
from xjobs.operations.settle import Ack, Nack
from xjobs.queue import AsyncQueue, Queue, aenqueue_many, enqueue_many, use
from xjobs.records import Bulk, ClaimedJob, DrainReport, Enqueued, JobRow, Jump, Pause, QueueStats, Run, Waiting
from xjobs.registry import registered_jobs
from xjobs.retry import Retry

__distribution__ = "pytest-xjobs"
"""Tells this package from the unrelated one on the public index that has the same import name."""

__all__ = [
    "NO_KEY",
    "Aborted",
    "Ack",
    "AsyncContext",
    "AsyncQueue",
    "Bulk",
    "Call",
    "ClaimQueuesEmpty",
    "ClaimedJob",
    "ConnectionUnsupported",
    "Context",
    "DeclarationInvalid",
    "DrainReport",
    "DrainStopped",
    "Draining",
    "DriverUnavailable",
    "Enqueued",
    "Error",
    "IdInvalid",
    "IdempotencyRequired",
    "InputInvalid",
    "Invariant",
    "JobCancelled",
    "JobDuplicate",
    "JobHandle",
    "JobNotCancellable",
    "JobNotFound",
    "JobNotPromotable",
    "JobNotRemovable",
    "JobNotRequeueable",
    "JobRow",
    "JobTimeout",
    "JobUnknown",
    "Jump",
    "LeaseLost",
    "Nack",
    "OnSettledFailed",
    "PageInvalid",
    "Pause",
    "Queue",
    "QueueStats",
    "RateLimited",
    "Retry",
    "RowStateUnknown",
    "Run",
    "SchemaMissing",
    "SlotLost",
    "StepDuplicate",
    "StepNotAwaited",
    "TenantRequired",
    "TransactionAborted",
    "TransactionConflict",
    "Waiting",
    "WouldBlock",
    "aenqueue_many",
    "enqueue_many",
    "job",
    "registered_jobs",
    "use",
]
