"""Real processes that take jobs from one table."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from pytest_xjobs.runtime import Runtime
from xjobs import NO_KEY, Queue, job
from xjobs.drivers.postgres import PostgresDriver
from xjobs.registry import scope

JOBS = 10_000

# Claims in batches until nothing is due, settles each batch, and prints the ids that it settled itself.
CLAIMER = """
import sys
from xjobs import Ack, Queue
from xjobs.drivers.postgres import PostgresDriver

dsn, worker = sys.argv[1:]
queue = Queue(PostgresDriver(dsn))
print("ready", flush=True)
sys.stdin.readline()
while jobs := queue.claim(queues=["default"], worker_id=worker, limit=50).jobs:
    for done in queue.ack([Ack(job) for job in jobs], worker_id=worker):
        print(done)
"""


def test_every_job_is_done_exactly_once(run: Runtime) -> None:
    place = run.shared()
    place.database.reset(place.control)
    with scope():

        @job(key=NO_KEY)
        def work(n: int) -> None: ...

        queue = Queue(PostgresDriver(place.database.dsn))
        made = queue.enqueue_many([work.call(n=n) for n in range(JOBS)])

    claimers = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMER, place.database.dsn, f"worker-{n}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(2)
    ]
    for claimer in claimers:
        assert claimer.stdout is not None
        assert claimer.stdout.readline() == "ready\n"
    for claimer in claimers:
        assert claimer.stdin is not None
        claimer.stdin.write("go\n")
        claimer.stdin.flush()
    settled = [claimer.communicate(timeout=120)[0].split() for claimer in claimers]

    assert [claimer.returncode for claimer in claimers] == [0, 0]
    assert all(settled), "one process got nothing, so nothing was shared"
    counts = Counter(settled[0] + settled[1])
    assert set(counts) == {str(answer.id) for answer in made}
    assert set(counts.values()) == {1}
    rows = place.control.execute("select state, attempt, count(*) from x_jobs group by state, attempt").fetchall()
    assert rows == [("done", 1, JOBS)]
    assert place.control.execute("select sum(done) from x_job_counters").fetchone() == (JOBS,)
    queue.close()
