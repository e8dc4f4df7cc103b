"""The figures of the queue and of the plugin, as tables, beside pgbench on the same statements in the same run.

Run: python benchmarks/run.py [--quick]

Every figure is the median of rounds in which the rivals take turns, since machines are noisy; compare the ratios. The
server has its default durability (fsync and synchronous_commit on), its data in the temporary directory, and runs on
the same machine.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import psycopg

import xjobs
from pytest_xjobs.provision import Cluster, find_binaries
from xjobs.bridge import run_sync
from xjobs.clocks import process_time
from xjobs.drivers.postgres import PostgresDriver
from xjobs.operations import drain

sys.path.insert(0, str(Path(__file__).parent))

from bare import BareQueue

DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "autovacuum": "on"}
BATCH = 100
BULK = 1_000

INSERT = """
insert into x_jobs (id, name, queue, input, idempotency_key, run_id, max_attempts)
values (gen_random_uuid(), 'noop', 'default', '{"n": 1}', gen_random_uuid()::text, gen_random_uuid(), 3)
"""
INSERT_BULK = f"""
insert into x_jobs (id, name, queue, input, idempotency_key, run_id, max_attempts)
select gen_random_uuid(), 'noop', 'default', '{{"n": 1}}', gen_random_uuid()::text, gen_random_uuid(), 3
  from generate_series(1, {BULK})
"""
CLAIM = f"""
update x_jobs set state = 'running', attempt = attempt + 1, claims = claims + 1, claimed_by = 'pgbench',
       visible_at = now() + interval '30 s', updated_at = now()
 where ctid = any(array(select ctid from x_jobs where queue = 'default' and state in ('ready', 'delayed', 'suspended')
                           and run_at <= now() order by run_at, id limit {BATCH} for update skip locked));
update x_jobs set state = 'done', visible_at = null, claimed_by = null, updated_at = now()
 where queue = 'default' and state = 'running' and claimed_by = 'pgbench';
"""


@xjobs.job(key=xjobs.NO_KEY)
def noop(n: int) -> None: ...


async def in_place(handle: Any, arguments: tuple[Any, ...], values: dict[str, Any], _signal: object) -> Any:
    return handle.body(*arguments, **values)


def rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


class Bench:
    """One server, with what is run on it."""

    def __init__(self, cluster: Cluster, quick: bool) -> None:
        self.dsn = cluster.dsn("postgres")
        self.pgbench_path = cluster.binaries.directory / "pgbench"
        self.queue = xjobs.Queue(PostgresDriver(self.dsn))
        self.queue.install_schema()
        self.control = psycopg.connect(self.dsn, autocommit=True)
        self.rounds = 2 if quick else 5
        self.singles = 300 if quick else 2_000
        self.jobs = 2_000 if quick else 20_000

    def empty(self) -> None:
        self.control.execute("truncate x_jobs, x_job_counters")

    def fill(self, count: int) -> None:
        self.empty()
        for first in range(0, count, 5_000):
            self.queue.enqueue_many([noop.call(n) for n in range(first, min(first + 5_000, count))])
        self.control.execute("vacuum analyze x_jobs")

    def pgbench(self, script: str, transactions: int) -> float:
        """Transactions a second of one client."""
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
            file.write(script)
            file.flush()
            command = [
                str(self.pgbench_path),
                "-n",
                "-M",
                "prepared",
                "-c",
                "1",
                "-t",
                str(transactions),
                "-f",
                file.name,
            ]
            ran = subprocess.run([*command, self.dsn], capture_output=True, text=True, check=True)
        found = re.search(r"tps = ([\d.]+)", ran.stdout)
        assert found is not None, ran.stdout
        return float(found[1])

    def enqueue_one(self) -> float:
        self.empty()
        return rate(self.singles, lambda: [self.queue.enqueue(noop.call(n)) for n in range(self.singles)])

    def enqueue_bulk(self) -> float:
        self.empty()
        calls = [noop.call(n) for n in range(BULK)]
        times = self.jobs // BULK
        return rate(BULK * times, lambda: [self.queue.enqueue_many(calls) for _ in range(times)])

    def batches(self) -> float:
        self.fill(self.jobs)

        def work() -> None:
            while jobs := self.queue.claim(queues=["default"], worker_id="w", limit=BATCH).jobs:
                self.queue.ack([xjobs.Ack(job) for job in jobs], worker_id="w")

        return rate(self.jobs, work)

    def batches_pgbench(self) -> float:
        self.fill(self.jobs)
        return self.pgbench(CLAIM, self.jobs // BATCH) * BATCH

    def drain(self) -> float:
        count = self.singles
        self.fill(count)
        return rate(count, lambda: drain_all(self.queue, count))

    def single_pgbench(self) -> float:
        self.empty()
        return self.pgbench(INSERT, self.singles)

    def bulk_pgbench(self) -> float:
        self.empty()
        return self.pgbench(INSERT_BULK, self.jobs // BULK) * BULK

    def compare(self, name: str, ours: Callable[[], float], limit: Callable[[], float] | None) -> None:
        mine, theirs = [], []
        for _ in range(self.rounds):
            if limit is not None:
                theirs.append(limit())
            mine.append(ours())
        median = statistics.median(mine)
        if theirs:
            ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
            print(f"| {name} | {median:,.0f} | {statistics.median(theirs):,.0f} | {ratio:.2f} |", flush=True)
        else:
            print(f"| {name} | {median:,.0f} | | |", flush=True)


def drain_all(queue: xjobs.Queue, count: int) -> None:
    setup = drain.DrainSetup(
        call=in_place,
        clock=process_time,
        random=Random(0),
        worker_id="bench",
        queues={"default"},
        running=[],
    )
    report = run_sync(drain.drain(queue.driver, setup, budget=count))
    assert len(report.runs) == count


def memory(quick: bool) -> None:
    print(
        "\n| in memory, enqueue and drain | jobs a second | us a job, CPU | bare loop | ratio |\n|---|---|---|---|---|"
    )
    for count in (1_000, 10_000) if quick else (1_000, 10_000, 100_000):
        rounds = [(_cost(_ours, count), _cost(_bare, count)) for _ in range(max(3, 30_000 // count))]
        ours, bare = (statistics.median(costs) for costs in zip(*rounds, strict=True))
        ratio = statistics.median(bare / ours for ours, bare in rounds)
        print(f"| {count:,} | {1e6 / ours:,.0f} | {ours:.1f} | {bare:.1f} | {ratio:.2f} |", flush=True)


def _cost(work: Callable[[int], object], count: int) -> float:
    """Microseconds of processor time a job."""
    began = time.process_time()
    work(count)
    return (time.process_time() - began) / count * 1e6


def _ours(count: int) -> None:
    queue = xjobs.Queue.connect("memory://")
    for n in range(count):
        queue.enqueue(noop.call(n))
    drain_all(queue, count)


def _bare(count: int) -> None:
    queue = BareQueue()
    for n in range(count):
        queue.enqueue("noop", n=n)
    queue.drain({"noop": noop})


SUITE = """
import pytest
import xjobs

@xjobs.job(key=xjobs.NO_KEY)
def noop(n: int) -> None: ...

@pytest.mark.parametrize("n", range({count}))
def test_it({fixtures}n):
    {body}
"""
_ENQUEUE = "noop.enqueue(n=n); xjobs_queue.drain()"


def suite(quick: bool) -> None:
    count = 300 if quick else 2_000
    print(f"\n| a suite of {count:,} tests, each one enqueue and one drain | seconds | ms a test beyond an empty one |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        empty = _run(Path(directory), SUITE.format(count=count, fixtures="", body="pass"))
        print(f"| empty tests | {empty:.2f} | |")
        text = SUITE.format(count=count, fixtures="xjobs_queue, ", body=_ENQUEUE)
        for name, options in (("memory", ()), ("Postgres", ("--xjobs-pg",))):
            taken = _run(Path(directory), text, *options)
            print(f"| {name} | {taken:.2f} | {(taken - empty) / count * 1000:.2f} |", flush=True)


def _run(directory: Path, text: str, *options: str) -> float:
    (directory / "test_suite.py").write_text(text)
    plugins = ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:hypothesispytest", "-p", "no:asyncio"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *options, "test_suite.py"]
    took = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(command, cwd=directory, check=True, capture_output=True)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and rows: shows that it runs, not how fast")
    quick = parser.parse_args().quick
    with (
        tempfile.TemporaryDirectory(prefix="xb") as directory,
        Cluster.start(find_binaries(), settings=DURABLE, directory=_open_to_all(directory)) as cluster,
    ):
        bench = Bench(cluster, quick)
        print("| on Postgres, one connection | ours, jobs a second | pgbench | median ratio |\n|---|---|---|---|")
        bench.compare("enqueue one by one", bench.enqueue_one, bench.single_pgbench)
        bench.compare(f"enqueue_many of {BULK:,}, with dedupe", bench.enqueue_bulk, bench.bulk_pgbench)
        bench.compare(f"claim {BATCH} and ack {BATCH}", bench.batches, bench.batches_pgbench)
        bench.compare("drain, one claim and one ack a job", bench.drain, None)
    memory(quick)
    suite(quick)


def _open_to_all(directory: str) -> Path:
    """The server may run as another user than this process."""
    path = Path(directory)
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    main()
