"""The figures of the worker, as tables, beside pgqueuer and beside pgbench on the same statements in the same run.

Run: python benchmarks/worker.py [--quick] [--only drain,latency,idle,steady]

Rivals take turns (limit, peer, ours, ours, peer, limit) and medians of the ratios of paired rounds count, since
machines are noisy. pgqueuer is installed into a virtual environment of its own. Workers run with 500 slots and
pgqueuer with batches of 500, both on uvloop for drains; the server has its default durability and runs on the same
machine.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

import xjobs
from pytest_xjobs.provision import Cluster, find_binaries
from xjobs.drivers.postgres import PostgresDriver

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from worker_ours import BODIES  # noqa: E402

DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "autovacuum": "on"}
SLOTS = 500
BATCH = 100
GAP = 0.3  # seconds between jobs that are to be picked up: a worker is told of one in 250 ms

CLAIM = f"""
update x_jobs set state = 'running', attempt = attempt + 1, claims = claims + 1, claimed_by = 'pgbench-' || :client_id,
       visible_at = now() + interval '30 s', updated_at = now()
 where ctid = any(array(select ctid from x_jobs where queue = 'async' and state in ('ready', 'delayed', 'suspended')
                           and run_at <= now() order by run_at, id limit {BATCH} for update skip locked));
update x_jobs set state = 'done', visible_at = null, claimed_by = null, updated_at = now()
 where queue = 'async' and state = 'running' and claimed_by = 'pgbench-' || :client_id;
"""


class Worker:
    """A worker process that waits for the word."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def pss(self) -> float:
        """Megabytes, shared ones by the number of those that share them."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) / 1024

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Rival:
    """A queue that drains jobs: how it is filled, started and asked what is left."""

    name: str
    left: str

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def fill(self, count: int) -> None:
        raise NotImplementedError

    def start(self) -> Worker:
        raise NotImplementedError

    def drain(self, count: int, workers: int, *, fill: bool = True) -> tuple[float, float]:
        """Jobs a second from the word to the last settle, and microseconds of client CPU a job."""
        if fill:
            self.fill(count)
        started = [self.start() for _ in range(workers)]
        try:
            cpu = sum(worker.cpu() for worker in started)
            began = time.perf_counter()
            for worker in started:
                worker.go()
            while self.bench.control.execute(self.left).fetchone() != (False,):
                time.sleep(0.01)
            took = time.perf_counter() - began
            return count / took, (sum(worker.cpu() for worker in started) - cpu) / count * 1e6
        finally:
            for worker in started:
                worker.end()


class Ours(Rival):
    left = "select exists (select from x_jobs where state in ('ready', 'running', 'delayed', 'suspended'))"

    def __init__(self, bench: Bench, body: str) -> None:
        super().__init__(bench)
        self.name, self.body = f"xjobs, {body} bodies", body

    def fill(self, count: int) -> None:
        self.bench.control.execute("truncate x_jobs, x_job_counters")
        self.add(count)
        self.bench.control.execute("vacuum analyze x_jobs")

    def add(self, count: int) -> None:
        for first in range(0, count, 1_000):
            calls = [BODIES[self.body].call(n) for n in range(first, min(first + 1_000, count))]
            self.bench.queue.enqueue_many(calls)

    def start(self) -> Worker:
        # On uvloop, as the rival.
        return Worker(sys.executable, str(HERE / "worker_ours.py"), self.bench.dsn, self.body, str(SLOTS), "uvloop")


class PgQueuer(Rival):
    name = "pgqueuer"
    left = "select exists (select from pgqueuer)"

    def fill(self, count: int) -> None:
        self.bench.pgqueuer("fill", str(count))
        self.bench.control.execute("vacuum analyze pgqueuer")

    def start(self) -> Worker:
        return Worker(self.bench.python, str(HERE / "worker_pgqueuer.py"), self.bench.dsn, "work")


class Bench:
    """One server with both queues on it."""

    def __init__(self, cluster: Cluster, scratch: Path, quick: bool, rounds: int) -> None:
        self.quick = quick
        self.jobs = 4_000 if quick else 20_000
        self.rounds = 1 if quick else rounds
        self.dsn = cluster.dsn("postgres")
        self.pgbench_path = cluster.binaries.directory / "pgbench"
        self.queue = xjobs.Queue(PostgresDriver(self.dsn))
        self.queue.install_schema()
        self.control = psycopg.connect(self.dsn, autocommit=True)
        self.python = os.environ.get("PGQUEUER_PYTHON") or _pgqueuer(scratch)
        self.pgqueuer("install")

    def pgqueuer(self, *arguments: str) -> None:
        subprocess.run([self.python, str(HERE / "worker_pgqueuer.py"), self.dsn, *arguments], check=True)

    def pgbench(self, clients: int) -> float:
        """Jobs a second that are claimed and settled by so many clients of pgbench."""
        Ours(self, "async").fill(self.jobs)
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
            file.write(CLAIM)
            file.flush()
            transactions = self.jobs // BATCH // clients
            options = ["-n", "-M", "prepared", "-c", str(clients), "-j", str(clients), "-t", str(transactions)]
            command = [str(self.pgbench_path), *options, "-f", file.name, self.dsn]
            ran = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.search(r"tps = ([\d.]+)", ran.stdout)
        assert found is not None, ran.stdout
        return float(found[1]) * BATCH

    def compare(self, ours: Callable[[], float], *others: Callable[[], float]) -> tuple[list[float], list[list[float]]]:
        """Rounds in which the rivals take turns, once in each direction; our rates, and theirs."""
        mine: list[float] = []
        theirs: list[list[float]] = [[] for _ in others]
        for _ in range(self.rounds):
            for at, other in enumerate(others):
                theirs[at].append(other())
            mine += [ours(), ours()]
            for at, other in reversed(list(enumerate(others))):
                theirs[at].append(other())
        return mine, theirs


def _pgqueuer(scratch: Path) -> str:
    venv.create(scratch / "venv", with_pip=True)
    python = str(scratch / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "pgqueuer", "asyncpg", "uvloop"], check=True)
    return python


def ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def drain(bench: Bench) -> None:
    cpu: dict[str, list[float]] = {}

    def rate(rival: Rival, workers: int) -> Callable[[], float]:
        def run() -> float:
            jobs_a_second, microseconds = rival.drain(bench.jobs, workers)
            if workers == 1:
                cpu.setdefault(rival.name, []).append(microseconds)
            return jobs_a_second

        return run

    peer = PgQueuer(bench)
    print(f"\n| drain of {bench.jobs:,} no-op jobs | jobs a second | pgqueuer, async | ratio | pgbench | ratio |")
    print("|---|---|---|---|---|---|")
    for body, workers in (("async", 1), ("async", 2), ("def", 1)):
        ours, (limit, theirs) = bench.compare(
            rate(Ours(bench, body), workers), lambda workers=workers: bench.pgbench(workers), rate(peer, workers)
        )
        print(
            f"| {workers} worker{'s' * (workers > 1)}, {body} bodies | {statistics.median(ours):,.0f}"
            f" | {statistics.median(theirs):,.0f} | {ratio(ours, theirs):.2f}"
            f" | {statistics.median(limit):,.0f} | {ratio(ours, limit):.2f} |",
            flush=True,
        )
    print("\n| client CPU of one worker | us a job |\n|---|---|")
    for name, spent in cpu.items():
        print(f"| {name} | {statistics.median(spent):.1f} |", flush=True)


@contextmanager
def running(*command: str) -> Iterator[Worker]:
    worker = Worker(*command)
    worker.go()
    try:
        yield worker
    finally:
        worker.end()


def _arrivals(worker: Worker, count: int) -> list[float]:
    assert worker.process.stdout is not None
    return [float(worker.process.stdout.readline()) * 1_000 for _ in range(count)]


def latency(bench: Bench) -> None:
    count = 20 if bench.quick else 60
    bench.control.execute("truncate x_jobs, x_job_counters")
    found: dict[str, list[float]] = {"xjobs": [], "pgqueuer": []}
    ours = (sys.executable, str(HERE / "worker_ours.py"), bench.dsn, "stamp", "8")
    theirs = (bench.python, str(HERE / "worker_pgqueuer.py"), bench.dsn, "stamp")
    for _ in range(bench.rounds):
        with running(*theirs) as worker:
            time.sleep(2)
            bench.pgqueuer("send", str(count))
            found["pgqueuer"] += _arrivals(worker, count)
        with running(*ours) as worker:
            time.sleep(2)
            for _ in range(count):
                time.sleep(GAP)
                bench.queue.enqueue(BODIES["stamp"].call(sent=time.time()))
            found["xjobs"] += _arrivals(worker, count)
            # The last one is settled, too, or its lease would lapse in the next round and it would be run again.
            while bench.control.execute(Ours.left).fetchone() != (False,):
                time.sleep(0.01)
    print("\n| pick-up by an idle worker, enqueue included | p50, ms | p99, ms |\n|---|---|---|")
    for name, times in found.items():
        cuts = statistics.quantiles(times, n=100)
        print(f"| {name} | {cuts[49]:.2f} | {cuts[98]:.2f} |", flush=True)


def idle(bench: Bench) -> None:
    seconds = 15 if bench.quick else 120
    bench.control.execute("truncate x_jobs, x_job_counters")
    bench.pgqueuer("fill", "0")
    print("\n| idle worker | statements a minute | memory, MB (PSS) |\n|---|---|---|")
    commands = {
        "xjobs": (sys.executable, str(HERE / "worker_ours.py"), bench.dsn, "async", "8"),
        "pgqueuer": (bench.python, str(HERE / "worker_pgqueuer.py"), bench.dsn, "stamp"),
    }
    for name, command in commands.items():
        with running(*command) as worker:
            time.sleep(20 if not bench.quick else 8)  # the pauses have grown to their longest
            before = _statements(bench)
            time.sleep(seconds)
            sent = _statements(bench) - before
            print(f"| {name} | {sent * 60 / seconds:.0f} | {worker.pss():.1f} |", flush=True)


def _statements(bench: Bench) -> int:
    """Transactions of the database so far; sessions hand in their counts when they have been idle for a moment."""
    row = bench.control.execute(
        "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0])


def steady(bench: Bench) -> None:
    rounds = 3 if bench.quick else 6
    ours, peer = Ours(bench, "async"), PgQueuer(bench)
    bench.control.execute("truncate x_jobs, x_job_counters")
    bench.control.execute("select pg_stat_reset()")
    print(f"\n| round of {bench.jobs:,} on one table that keeps its rows | xjobs | pgqueuer | server I/O of ours |")
    print("|---|---|---|---|")
    rates = []
    for number in range(rounds):
        ours.add(bench.jobs)
        mine, _ = ours.drain(bench.jobs, 1, fill=False)
        theirs, _ = peer.drain(bench.jobs, 1)
        rates.append((mine, theirs))
        print(f"| {number + 1} | {mine:,.0f} | {theirs:,.0f} | {_io(bench)} |", flush=True)
    mine, theirs = zip(*rates[1:], strict=True)
    first = rates[0][0]
    print(
        f"| median of the later ones, against pgqueuer, against our first | {statistics.median(mine):,.0f}"
        f" | {statistics.median(mine) / statistics.median(theirs):.2f} | {statistics.median(mine) / first:.2f} |"
    )


def _io(bench: Bench) -> str:
    row = bench.control.execute(
        """
        select pg_size_pretty(pg_table_size('x_jobs')), pg_size_pretty(pg_indexes_size('x_jobs')), n_dead_tup,
               autovacuum_count
          from pg_stat_user_tables where relname = 'x_jobs'
        """
    ).fetchone()
    assert row is not None
    return f"table {row[0]}, indexes {row[1]}, dead {row[2]:,}, vacuums {row[3]}"


PARTS = {"drain": drain, "latency": latency, "idle": idle, "steady": steady}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and rows: shows that it runs, not how fast")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xb") as directory:
        scratch = Path(directory)
        scratch.chmod(0o755)  # the server may run as another user
        with Cluster.start(find_binaries(), settings=DURABLE, directory=scratch) as cluster:
            bench = Bench(cluster, scratch, given.quick, given.rounds)
            for part in given.only.split(","):
                PARTS[part](bench)


if __name__ == "__main__":
    main()
