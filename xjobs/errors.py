"""Every error of the package, as one tree.

Each class is a condition with a stable `code`. An error states a fact with the offending value, then the remedy; its
data is in attributes; it pickles. Catch `Error` for all of them.

    Error
    +-- DeclarationInvalid      a @job that cannot be declared
    |   +-- IdempotencyRequired
    |   +-- TenantRequired
    +-- Invariant               an argument that no call accepts
    |   +-- InputInvalid        input that does not fit the job, or is not JSON
    |   +-- IdInvalid
    |   +-- ClaimQueuesEmpty
    |   +-- PageInvalid
    +-- JobDuplicate            a name or a live key is taken
    +-- JobNotFound             no job has this id
    +-- JobNotCancellable       it has finished, or there is none
    +-- JobNotRequeueable       it has not finished
    +-- JobNotPromotable        it does not wait for an instant
    +-- JobNotRemovable         it is running
    +-- JobTimeout              an attempt, a step or a required wait passed its deadline
    +-- JobCancelled            somebody cancelled the job while its body ran
    +-- KeyBusy                 a job was refused because the runs of its key are at their limit
    +-- LeaseLost               the claim of the attempt is gone
    +-- SlotLost                the fleet-wide slot of the attempt is gone
    +-- Draining                the worker that ran the body is shutting down
    +-- Aborted                 a write of an attempt that has to stop, or has ended
    +-- StepDuplicate           two steps of one attempt have one name
    +-- StepNotAwaited          an async step was called and never awaited
    +-- RateLimited             raised by bodies: try again later, this attempt does not count
    +-- OnSettledFailed         an ending hook that failed each time
    +-- JobUnknown              a row whose job nobody declared in this process
    +-- RowStateUnknown         a state in the store that this version does not know
    +-- DriverUnavailable       no queue, or no database behind it
    |   +-- SchemaMissing
    +-- TransactionAborted      the caller's transaction cannot take the job
    +-- TransactionConflict     the caller's transaction met another one and must be run again
    +-- ConnectionUnsupported   a connection that the queue cannot join
    +-- WouldBlock              a statement that would wait for another transaction
    +-- DrainStopped            a drain that ran out of its budget
    +-- DdlScratchRefused       a server that lets no database be made for a check
    +-- DdlSourceInvalid        a text that the DDL checks cannot read
        +-- DdlSyntaxInvalid    it is no SQL, at a place that is named
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "Aborted",
    "ClaimQueuesEmpty",
    "ConnectionUnsupported",
    "DdlScratchRefused",
    "DdlSourceInvalid",
    "DdlSyntaxInvalid",
    "DeclarationInvalid",
    "DrainStopped",
    "Draining",
    "DriverUnavailable",
    "Error",
    "IdInvalid",
    "IdempotencyRequired",
    "InputInvalid",
    "Invariant",
    "JobCancelled",
    "JobDuplicate",
    "JobNotCancellable",
    "JobNotFound",
    "JobNotPromotable",
    "JobNotRemovable",
    "JobNotRequeueable",
    "JobTimeout",
    "JobUnknown",
    "KeyBusy",
    "LeaseLost",
    "OnSettledFailed",
    "PageInvalid",
    "RateLimited",
    "RowStateUnknown",
    "SchemaMissing",
    "SlotLost",
    "StepDuplicate",
    "StepNotAwaited",
    "TenantRequired",
    "TransactionAborted",
    "TransactionConflict",
    "WouldBlock",
]


class Error(Exception):
    """Base of every error that xjobs raises.

    Attributes:
        code: stable name of the condition, such as `X_JOB_DUPLICATE`.
        fact: what was found, with the offending value.
        remedy: what to do about it.
        data: further values by name, also readable as attributes.
    """

    code = "X_ERROR"

    def __init__(self, fact: str, remedy: str, **data: Any) -> None:
        between = "\n  " if "\n" in fact else ": "
        super().__init__(f"{fact}{between}{remedy}" if remedy else fact)
        self.fact = fact
        self.remedy = remedy
        self.data = data

    def __getattr__(self, name: str) -> Any:
        # `data` itself is missing while an instance is being unpickled.
        data = self.__dict__.get("data", {})
        if name in data:
            return data[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        # The dict again as state, for the notes.
        return _rebuild, (type(self), self.fact, self.remedy, self.data), self.__dict__


def _rebuild(kind: type[Error], fact: str, remedy: str, data: dict[str, Any]) -> Error:
    return kind(fact, remedy, **data)


class DeclarationInvalid(Error):
    """A job declaration with a missing or impossible option."""

    code = "X_JOB_DECLARATION_INVALID"


class IdempotencyRequired(DeclarationInvalid):
    """A job declaration that lacks only its `key`."""

    code = "X_IDEMPOTENCY_REQUIRED"


class TenantRequired(DeclarationInvalid):
    """A job declaration whose `tenant` is of the wrong type."""

    code = "X_JOB_TENANT_REQUIRED"


class Invariant(Error, ValueError):
    """An argument that cannot be accepted."""

    code = "X_INVARIANT"


class InputInvalid(Invariant):
    """Input that does not fit the job's parameters, or is not strict JSON; `path` names the place."""

    code = "X_INPUT_INVALID"


class IdInvalid(Invariant):
    """An id that is not a UUID in its canonical lowercase form."""

    code = "X_ID_INVALID"


class ClaimQueuesEmpty(Invariant):
    """A claim that names no queue."""

    code = "X_JOB_CLAIM_QUEUES_EMPTY"


class PageInvalid(Invariant):
    """A page over its bound."""

    code = "X_JOB_PAGE_INVALID"


class JobDuplicate(Error):
    """A job name is declared twice, or a live job holds the idempotency key."""

    code = "X_JOB_DUPLICATE"


class JobNotFound(Error):
    """No job has this id."""

    code = "X_JOB_NOT_FOUND"


class JobNotCancellable(Error):
    """A job that cannot be cancelled: it has finished, or there is none."""

    code = "X_JOB_NOT_CANCELLABLE"


class JobNotRequeueable(Error):
    """A job that cannot be requeued: it has not finished."""

    code = "X_JOB_NOT_REQUEUEABLE"


class JobNotPromotable(Error):
    """A job that cannot be promoted: it does not wait for an instant."""

    code = "X_JOB_NOT_PROMOTABLE"


class JobNotRemovable(Error):
    """A job that cannot be removed: it is running."""

    code = "X_JOB_NOT_REMOVABLE"


class JobTimeout(Error, TimeoutError):
    """An attempt, a step or a required wait for an event that passed its deadline."""

    code = "X_JOB_TIMEOUT"


class JobCancelled(Error):
    """The reason of a run signal: the job was cancelled while its body ran."""

    code = "X_JOB_CANCELLED"


class KeyBusy(Error):
    """A job that was refused: the runs of its key are at the limit, and its limit says `when_busy="fail"`."""

    code = "X_JOB_KEY_BUSY"


class LeaseLost(Error):
    """The claim of an attempt is gone: its lease lapsed, or another worker has the job."""

    code = "X_JOB_LEASE_LOST"


class SlotLost(Error):
    """The slot of a fleet-wide concurrency limit that an attempt held is gone."""

    code = "X_JOB_SLOT_LOST"


class Draining(Error):
    """The reason of a run signal: the worker shuts down and its time for running jobs is over."""

    code = "X_DRAINING"


class Aborted(Error):
    """A step or progress write of an attempt that must stop, or that has ended; its cause is the reason."""

    code = "X_ABORTED"


class StepDuplicate(Error):
    """Two steps of one attempt have the same name."""

    code = "X_STEP_DUPLICATE"


class StepNotAwaited(Error):
    """A step of an `async def` body was called and its coroutine never awaited."""

    code = "X_STEP_NOT_AWAITED"


class RateLimited(Error):
    """Raised by a body: the job is given back and tried again after `wait` seconds; the attempt does not count.

    Args:
        wait: a timedelta or seconds; by the job's backoff when not given.
    """

    code = "X_RATE_LIMITED"

    def __init__(self, fact: str = "rate limited", remedy: str = "", **data: Any) -> None:
        super().__init__(fact, remedy, **data)


class OnSettledFailed(Error):
    """An ending hook (`on_settled`) that failed each time it was tried; the job's row is as it was settled."""

    code = "X_JOB_ON_SETTLED_FAILED"


class JobUnknown(Error):
    """A queued job that nothing in this process declares."""

    code = "X_JOB_UNKNOWN"


class RowStateUnknown(Error):
    """A state read back from the store that this version does not know."""

    code = "X_JOB_ROW_STATUS_UNKNOWN"


class DriverUnavailable(Error):
    """There is no queue to answer, or its database does not."""

    code = "X_DRIVER_UNAVAILABLE"


class SchemaMissing(DriverUnavailable):
    """The database lacks the queue's tables, or has an older form of them."""

    code = "X_SCHEMA_MISSING"


class TransactionAborted(Error):
    """The caller's transaction has failed and takes no more statements."""

    code = "X_TRANSACTION_ABORTED"


class TransactionConflict(Error):
    """The caller's transaction met the work of another one (a serialization failure, a deadlock, an equal id)."""

    code = "X_TRANSACTION_CONFLICT"


class ConnectionUnsupported(Error):
    """A `connection=` that the queue cannot join or follow."""

    code = "X_CONNECTION_UNSUPPORTED"


class WouldBlock(Error):
    """A statement that would wait for another open transaction: in memory at once, and where the queue of a test on
    Postgres has waited for some seconds.
    """

    code = "X_WOULD_BLOCK"


class DrainStopped(Error):
    """A drain that used up its budget; `report` holds what it did run."""

    code = "X_DRAIN_STOPPED"


class DdlSourceInvalid(Error):
    """A text that the DDL checks cannot read: no file, no text, not UTF-8, empty, a rule or reason that is none."""

    code = "X_DDL_SOURCE_INVALID"


class DdlSyntaxInvalid(DdlSourceInvalid):
    """A text that is no SQL; `line` and `column` say where, both from 1."""

    code = "X_DDL_SYNTAX_INVALID"


class DdlScratchRefused(Error):
    """A role that may not make the databases in which DDL is checked."""

    code = "X_DDL_SCRATCH_REFUSED"
