"""The tables of the memory backend, and transactions over them.

Rows are changed in place. Inside an open transaction a row that it writes keeps its committed form in `before`: other
sessions read that one, a rollback puts it back, a commit drops it. Outside of transactions, which is nearly always,
nothing is copied. A statement that would wait on Postgres for another transaction raises `WouldBlock` before it has
changed anything.
"""

from __future__ import annotations

import copy
import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar
from uuid import UUID

from xjobs.clocks import process_time
from xjobs.drivers.memory.due import Due, Entry
from xjobs.errors import TransactionAborted, WouldBlock
from xjobs.states import LIVE, WAITING

LiveKey = tuple[str, str, str]

MINUTE_MS = 60_000
_MINUTE = timedelta(minutes=1)
_NO_MINUTE = datetime.min.replace(tzinfo=UTC)
GONE = "gone"
"""The state of a row object that is in no table any more."""

_SOON = timedelta(seconds=1)
_LIVE, _WAITING = frozenset(LIVE), frozenset(WAITING)


class Row:
    """A stored row.

    Attributes:
        writer: the open transaction that has locked it.
        changed: that transaction has also written it; a key that it holds can be asked for only then without an answer.
        before: its committed form while there is a writer; None for a row that the writer inserted.
        gone: it is deleted; by the writer, if there is one.
    """

    __slots__ = ("before", "changed", "gone", "writer")

    def __init__(self) -> None:
        self.writer: Transaction | None = None
        self.before: Self | None = None
        self.changed = self.gone = False


class Indexed(Row):
    """A row with what the indexes keep of it.

    Attributes:
        entry: its place in the order of what is due; None while it has none.
        live_key: the columns of the unique index over live rows.
    """

    __slots__ = ("entry", "live_key")

    entry: Entry | None
    live_key: LiveKey


class Job(Indexed):
    """A row of x_jobs. `input` and `progress` are JSON text."""

    __slots__ = (
        "attempt",
        "claimed_by",
        "claims",
        "created_at",
        "enqueued_by",
        "id",
        "idempotency_key",
        "input",
        "last_error",
        "last_error_stack",
        "max_attempts",
        "name",
        "progress",
        "queue",
        "run_at",
        "run_id",
        "state",
        "tenant_id",
        "traceparent",
        "updated_at",
        "visible_at",
    )

    id: UUID
    name: str
    queue: str
    input: str
    idempotency_key: str
    run_id: UUID
    attempt: int
    max_attempts: int
    state: str
    run_at: datetime
    visible_at: datetime | None
    claimed_by: str | None
    last_error: str | None
    last_error_stack: str | None
    tenant_id: str | None
    created_at: datetime
    updated_at: datetime
    traceparent: str | None
    enqueued_by: str | None
    progress: str | None
    claims: int

    def __init__(
        self,
        now: datetime,
        live_key: LiveKey,
        id: UUID,  # noqa: A002 - the column's name
        name: str,
        queue: str,
        input: str,  # noqa: A002
        idempotency_key: str,
        run_id: UUID,
        max_attempts: int,
        run_at: datetime | None,
        delay: timedelta | None,
        tenant_id: str | None,
        traceparent: str | None,
        enqueued_by: str | None,
    ) -> None:
        # Not by Row.__init__: one call less for each job.
        self.writer = self.before = None
        self.changed = self.gone = False
        self.live_key = live_key
        self.id = id
        self.name = name
        self.queue = queue
        self.input = input
        self.idempotency_key = idempotency_key
        self.run_id = run_id
        self.max_attempts = max_attempts
        self.run_at = due_at = run_at if run_at is not None else now if delay is None else now + delay
        self.state = "delayed" if due_at > now else "ready"
        self.tenant_id = tenant_id
        self.traceparent = traceparent
        self.enqueued_by = enqueued_by
        self.created_at = self.updated_at = now
        self.attempt = self.claims = 0
        self.visible_at = self.claimed_by = self.last_error = self.last_error_stack = self.progress = None

    def __lt__(self, other: Job) -> bool:
        """Order the entries of two rows that had one id, one after the other: either way will do."""
        return False


class Counter(Row):
    """A row of x_job_counters."""

    __slots__ = ("dead", "done", "duration_ms", "failed", "retried")

    def __init__(self) -> None:
        super().__init__()
        self.done = self.retried = self.failed = self.dead = self.duration_ms = 0


class Pause(Row):
    """A row of x_job_pauses."""

    __slots__ = ("paused_at",)

    paused_at: datetime


class Slot(Row):
    """A row of x_job_leases."""

    __slots__ = ("expires_at", "holder")

    holder: str
    expires_at: datetime


class Worker(Row):
    """A row of x_job_workers. `queues` and `in_flight` are JSON text."""

    __slots__ = (
        "concurrency",
        "draining_at",
        "expires_at",
        "heartbeat_at",
        "host",
        "id",
        "in_flight",
        "queues",
        "started_at",
    )

    id: str
    host: str
    queues: str
    concurrency: int
    in_flight: str
    started_at: datetime
    heartbeat_at: datetime
    expires_at: datetime
    draining_at: datetime | None


CounterKey = tuple[str, int, datetime]
PauseKey = tuple[str, str]
SlotKey = tuple[str, int]
R = TypeVar("R", bound=Row)


class Store:
    """The tables and their indexes.

    Args:
        clock: the present instant, in UTC.
    """

    def __init__(self, clock: Callable[[], datetime] = process_time) -> None:
        self.clock = clock
        # Taken again inside: a look at a followed transaction commits here, and a clock that has moved renews leases.
        self.lock = threading.RLock()
        # Asked before each statement: whether a transaction elsewhere, which a transaction here follows, has ended.
        self.followed: list[Callable[[], None]] = []
        # Told channel and payload of what pg_notify would send, once it is committed.
        self.listeners: list[Callable[[str, str], None]] = []
        self.clear()

    def clear(self) -> None:
        """Empty every table."""
        with self.lock:
            # By the number that an id is, which hashes and compares faster.
            self.jobs: dict[int, Job] = {}
            self.live: dict[LiveKey, Job] = {}
            # Rows whose open transaction has freed their key: it is not free for others before that commits.
            self.freeing: dict[LiveKey, Job] = {}
            # By queue: what waits for its `run_at`, and what runs by the end of its lease.
            self.waiting: defaultdict[str, Due] = defaultdict(Due)
            self.running: defaultdict[str, Due] = defaultdict(Due)
            self.counters: dict[CounterKey, Counter] = {}
            self.pauses: dict[PauseKey, Pause] = {}
            # Steps by run and name, those that wait for an event besides, and events by name and id.
            self.steps: dict[UUID, dict[str, Any]] = {}
            self.waits: dict[tuple[UUID, str], Any] = {}
            self.events: dict[str, dict[UUID, Any]] = {}
            # The jobs of each run; made when first asked for, since most queues never do.
            self.runs: dict[UUID, list[Job]] | None = None
            self._minute = self._minute_end = _NO_MINUTE
            self.slots: dict[SlotKey, Slot] = {}
            self.workers: dict[str, Worker] = {}

    def index(self, job: Job) -> None:
        """Enter a row under what it is now."""
        if job.state in _LIVE:
            self.live[job.live_key] = job
        self.order(job)

    def order(self, job: Job) -> None:
        """Give a row its place among those that are due at some time."""
        if job.state in _WAITING:
            self.waiting[job.queue].put(job.run_at, job)
        elif job.state == "running" and job.visible_at is not None:
            self.running[job.queue].put(job.visible_at, job)
        else:
            job.entry = None

    def tell(self, channel: str, payload: str) -> None:
        """Send a notification to every listener."""
        for listener in tuple(self.listeners):
            listener(channel, payload)

    def forget_key(self, job: Job) -> None:
        """Free the key of a row that is no longer live, unless another row has taken it."""
        key = job.live_key
        if self.live.get(key) is job:
            del self.live[key]

    def minute(self, now: datetime) -> datetime:
        """The start of the minute of an instant."""
        if not self._minute <= now < self._minute_end:
            self._minute = now.replace(second=0, microsecond=0)
            self._minute_end = self._minute + _MINUTE
        return self._minute


class Session:
    """What a statement works with: the tables as its transaction sees them, and one present instant, `now`."""

    __slots__ = ("now", "store", "transaction")

    def __init__(self, store: Store, transaction: Transaction | None) -> None:
        self.store = store
        self.transaction = transaction
        self.now = store.clock()

    def visible(self, row: R) -> R | None:
        """The form of a row that this session reads; None for one that is not committed yet, or deleted here."""
        if row.writer is None or row.writer is self.transaction:
            return None if row.gone else row
        return row.before

    def locked(self, row: Row) -> bool:
        """Whether another open transaction has changed or locked the row."""
        return row.writer is not None and row.writer is not self.transaction

    def wait_for(self, row: Row, what: str) -> None:
        """Be where Postgres would wait for the writer of a row.

        Raises:
            WouldBlock: another open transaction has changed or locked it.
        """
        if self.locked(row):
            raise WouldBlock(
                f"this statement would wait for another open transaction, which holds {what}",
                "end that transaction first",
            )

    def wait_for_key(self, row: Row, what: str = "a job with the same key") -> None:
        """The same, to learn whether a row keeps out an equal one: a lock alone leaves no doubt about it.

        Raises:
            WouldBlock: another open transaction has changed it.
        """
        if row.changed:
            self.wait_for(row, what)

    def insert(self, job: Job) -> None:
        """Add a row; one with its id that this transaction has deleted stays what others see."""
        store, number = self.store, job.id.int
        if self.transaction is None:
            store.jobs[number] = job
        else:
            deleted = store.jobs.get(number)
            self._insert(store.jobs, number, job)
            if deleted is not None:
                job.before, deleted.before = deleted.before, None
        if store.runs is not None:
            store.runs.setdefault(job.run_id, []).append(job)
        store.live[job.live_key] = job
        store.waiting[job.queue].put(job.run_at, job)
        if store.listeners and job.run_at <= self.now + _SOON:
            self.notify("x_jobs_wake", job.queue)

    def delete(self, job: Job) -> None:
        """Delete a row that this session may write."""
        self.keep(job)
        if job.state in _LIVE:
            self.free_key(job)
        job.state, job.entry = GONE, None
        self._delete(self.store.jobs, job.id.int, job)

    def run_jobs(self, run_id: UUID) -> list[Job]:
        """The jobs of a run that this session sees, in the form in which it does."""
        runs = self.store.runs
        if runs is None:
            runs = self.store.runs = {}
            for job in self.store.jobs.values():
                runs.setdefault(job.run_id, []).append(job)
        jobs = runs.get(run_id, [])
        standing = [job for job in jobs if job.writer is not None or not job.gone]
        if len(standing) < len(jobs):
            runs[run_id] = standing
        return [seen for job in standing if (seen := self.visible(job)) is not None]

    def put(self, table: dict[Any, Any], key: Any, row: Row) -> None:
        """Add a row to a table; one at its place that this transaction has deleted stays what others see."""
        deleted = table.get(key)
        self._insert(table, key, row)
        if deleted is not None:
            row.before, deleted.before = deleted.before, None

    def drop(self, table: dict[Any, Any], key: Any, row: Row) -> None:
        """Delete a row of a table that this session may write."""
        self.keep(row)
        self._delete(table, key, row)

    def paused(self, kind: str, name: str) -> bool:
        """Whether this session sees a pause."""
        row = self.store.pauses.get((kind, name))
        return row is not None and self.visible(row) is not None

    def add_pause(self, kind: str, name: str) -> bool:
        """Add a pause; False when there is one.

        Raises:
            WouldBlock: another open transaction is adding or dropping it.
        """
        row = self.store.pauses.get((kind, name))
        if row is not None:
            self.wait_for(row, f"the pause of {kind} {name!r}")
            if not row.gone:
                return False
        row = Pause()
        row.paused_at = self.now
        self.put(self.store.pauses, (kind, name), row)
        return True

    def drop_pause(self, kind: str, name: str) -> bool:
        """Drop a pause; False when this session sees none.

        Raises:
            WouldBlock: another open transaction is dropping it.
        """
        row = self.store.pauses.get((kind, name))
        if row is None or self.visible(row) is None:
            return False
        self.wait_for(row, f"the pause of {kind} {name!r}")
        self.drop(self.store.pauses, (kind, name), row)
        return True

    def _insert(self, table: dict[Any, Any], key: Any, row: Row) -> None:
        table[key] = row
        if self.transaction is not None:
            row.writer, row.changed = self.transaction, True
            self.transaction.rows.append(row)
            self.transaction.places[id(row)] = table, key

    def _delete(self, table: dict[Any, Any], key: Any, row: Row) -> None:
        row.gone = True
        if self.transaction is None:
            del table[key]
        else:
            self.transaction.places[id(row)] = table, key

    def free_key(self, job: Job) -> None:
        """Free the key of a row that is no longer live; for others once the transaction has committed."""
        store, key = self.store, job.live_key
        if self.transaction is not None:
            store.freeing.setdefault(key, job)
        if store.live.get(key) is job:
            del store.live[key]

    def change(self, job: Job, **columns: Any) -> None:
        """Set columns of a row that this session may write."""
        self.keep(job)
        was_live = job.state in _LIVE
        for name, value in columns.items():
            setattr(job, name, value)
        job.updated_at = self.now
        if was_live and job.state not in _LIVE:
            self.free_key(job)
        self.store.index(job)

    def keep(self, row: Row) -> None:
        """Keep the committed form of a row that is about to be changed."""
        if self.transaction is not None:
            self.hold(row)
            row.changed = True

    def hold(self, row: Row) -> None:
        """Lock a row until the transaction ends, whether it is changed then or not."""
        if self.transaction is not None and row.writer is None:
            row.before = copy.copy(row)
            row.writer = self.transaction
            self.transaction.rows.append(row)

    def notify(self, channel: str, payload: str) -> None:
        """Send a notification when this transaction commits, each but once, as pg_notify does."""
        if self.transaction is None:
            self.store.tell(channel, payload)
        else:
            self.transaction.notes[channel, payload] = None

    def counter(self, job: str) -> Counter:
        """The counter of a job name in the present minute, to be written.

        Raises:
            WouldBlock: another open transaction is counting there.
        """
        counter = self.store.counters.get((job, MINUTE_MS, self.store.minute(self.now)))
        if counter is None or counter.writer is not None:
            return self.counters([job])[job]
        return counter

    def counters(self, jobs: Collection[str]) -> dict[str, Counter]:
        """`counter` for several names at once.

        Raises:
            WouldBlock: another open transaction is counting at one of them; no counter has been made then.
        """
        minute, counters = self.store.minute(self.now), self.store.counters
        found: dict[str, Counter] = {}
        missing: list[CounterKey] = []
        for job in sorted(set(jobs)) if len(jobs) > 1 else jobs:
            key = job, MINUTE_MS, minute
            standing = counters.get(key)
            if standing is None:
                missing.append(key)
            else:
                if standing.writer is not None:
                    self.wait_for(standing, f"the counters of {job!r}")
                found[job] = standing
        for key in missing:
            found[key[0]] = counter = Counter()
            self._insert(counters, key, counter)
        return found


class Transaction:
    """An open transaction: what it has written, until it ends."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.rows: list[Row] = []
        # Where rows stand that it has inserted or deleted, by their identity.
        self.places: dict[int, tuple[dict[Any, Any], Any]] = {}
        self.notes: dict[tuple[str, str], None] = {}
        self.failed = False
        self.ended = False

    def check(self) -> None:
        """Refuse further statements after a failure, as Postgres does.

        Raises:
            TransactionAborted: a statement of this transaction has failed.
        """
        if self.failed or self.ended:
            raise TransactionAborted(
                f"the transaction {'has ended' if self.ended else 'has failed'} and takes no more statements",
                "roll it back and begin another",
            )

    def commit(self) -> None:
        """Make its writes visible to all; after a failed statement, undo them, as Postgres does."""
        if self.failed:
            self.rollback()
            return
        with self.store.lock:
            for row in self.rows:
                row.writer, row.before, row.changed = None, None, False
                if row.gone:
                    self._take_out(row)
            self._end()
            for channel, payload in self.notes:
                self.store.tell(channel, payload)

    def rollback(self) -> None:
        """Undo its writes; once ended, do nothing."""
        with self.store.lock:
            if self.ended:
                return
            self._undo(0)
            self._end()

    def rollback_to(self, mark: int) -> None:
        """Undo the inserts since `len(rows)` was `mark`."""
        with self.store.lock:
            self._undo(mark)
            self.failed = False

    def _undo(self, mark: int) -> None:
        for row in reversed(self.rows[mark:]):
            if isinstance(row, Job):
                self.store.forget_key(row)
                if self.store.freeing.get(row.live_key) is row:
                    del self.store.freeing[row.live_key]
            if row.before is not None:
                _restore(row)
                if isinstance(row, Job):
                    self.store.index(row)
            else:
                self._take_out(row)
        del self.rows[mark:]

    def _take_out(self, row: Row) -> None:
        """Remove a row from its table, unless another one stands in its place."""
        table, key = self.places[id(row)]
        if table.get(key) is row:
            del table[key]
        row.gone, row.writer, row.changed = True, None, False
        if isinstance(row, Job):
            row.state, row.entry = GONE, None

    def _end(self) -> None:
        self.store.freeing = {key: job for key, job in self.store.freeing.items() if job not in self.rows}
        self.rows, self.places, self.ended = [], {}, True


def _restore(row: Row) -> None:
    for kind in type(row).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if name not in Row.__slots__:
                setattr(row, name, getattr(row.before, name))
    row.writer, row.before, row.changed, row.gone = None, None, False, False
