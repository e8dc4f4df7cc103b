"""The databases of a test run: template, clones, emptying, leaks, sweeping; on a real server."""

from __future__ import annotations

import concurrent.futures
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from pytest_xjobs import reset
from pytest_xjobs.databases import DatabaseRefused, RunDatabases, TemplateUnsettled
from pytest_xjobs.leaks import Leak, leaked_transactions, terminate
from pytest_xjobs.provision import Cluster, Existing, find_binaries
from pytest_xjobs.reset import Database, ResetBlocked, ResetMode

ROOT = Path(__file__).parents[2]
SCHEMA = (ROOT / "xjobs" / "sql" / "schema.sql").read_bytes()
# Two tables that refer to each other, one that refers to a job, a trigger that objects, a partitioned table, and what
# a migration tool wrote down.
APP = b"""
create table author (id int generated always as identity primary key, best_book int);
create table book (id int primary key, author_id int not null references author);
alter table author add foreign key (best_book) references book;
create table receipt (job_id uuid references x_jobs);
create function object() returns trigger language plpgsql as $$ begin raise exception 'never delete'; end $$;
create trigger no_delete before delete on book for each row execute function object();
create table measure (at int) partition by range (at);
create table measure_low partition of measure for values from (0) to (10);
create table alembic_version (version_num text);
insert into alembic_version values ('1a2b');
"""
ROWS = b"""
insert into author (best_book) values (null), (null);
insert into book select 1, min(id) from author;
update author set best_book = 1;
insert into x_jobs (id, name, input, idempotency_key, run_id)
  values ('00000000-0000-0000-0000-000000000001', 'n', '{}', 'k', gen_random_uuid());
insert into receipt values ('00000000-0000-0000-0000-000000000001');
insert into measure values (3);
insert into x_scheduler_leader values ('a', 'b', now());
"""
EMPTIED = ["author", "book", "measure", "receipt", "x_jobs", "x_scheduler_leader"]


def install(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(SCHEMA)
        conn.execute(APP)


def connect(database: Database) -> psycopg.Connection[Any]:
    return psycopg.connect(database.dsn, autocommit=True)


def counts(conn: psycopg.Connection[Any], tables: list[str]) -> dict[str, int]:
    query = "select count(*) from {}"
    return {t: conn.execute(sql.SQL(query).format(sql.Identifier(t))).fetchone()[0] for t in tables}  # type: ignore[index]


def names(cluster: Cluster) -> set[str]:
    with psycopg.connect(cluster.dsn("postgres")) as conn:
        rows = conn.execute("select datname from pg_database where datname like 'xjobs_test%'").fetchall()
    return {name for (name,) in rows}


def until(condition: Callable[[], bool], seconds: float = 5) -> bool:
    """Whether a condition of the outside world came true before a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start(find_binaries()) as server:
        yield server


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Existing:
    """The cluster as somebody else's server, which has to be left tidy."""
    return Existing.from_dsn(cluster.dsn("postgres"))


@pytest.fixture(scope="module")
def run(server: Existing) -> Iterator[RunDatabases]:
    with RunDatabases.start(server) as databases_of_run:
        databases_of_run.template(install)
        yield databases_of_run


@pytest.fixture(scope="module")
def shared(run: RunDatabases) -> Database:
    return run.create("shared")


@pytest.fixture
def database(shared: Database) -> Database:
    """One that this test may configure; the rows are emptied by the tests themselves, in any mode."""
    return Database(shared.name, shared.dsn)


@pytest.fixture
def conn(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with connect(database) as connection:
        Database(database.name, database.dsn).reset(connection)
        yield connection


class TestTemplate:
    def test_a_clone_has_the_schema_and_the_search_path_in_every_session(self, run: RunDatabases) -> None:
        clone = run.create("clone")
        for _ in range(2):
            with connect(clone) as conn:
                assert conn.execute("show search_path").fetchone() == ("public, xjobs_time, pg_catalog",)
                assert counts(conn, ["x_jobs", "alembic_version"]) == {"x_jobs": 0, "alembic_version": 1}
        run.drop(clone)
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            connect(clone)

    def test_the_setup_runs_under_the_search_path(self, server: Existing) -> None:
        seen = []

        def setup(dsn: str) -> None:
            with psycopg.connect(dsn) as conn:
                seen.append(conn.execute("show search_path").fetchone())

        with RunDatabases.start(server, search_path='app, "$user"') as run:
            run.template(setup)
            with connect(run.create("one")) as conn:
                seen.append(conn.execute("show search_path").fetchone())
        assert seen == [('app, "$user"',)] * 2

    def test_it_is_closed_to_sessions(self, run: RunDatabases, server: Existing) -> None:
        with pytest.raises(psycopg.OperationalError, match="not currently accepting connections"):
            psycopg.connect(server.dsn(f"xjobs_test_{run.run}_template"))

    def test_workers_share_one_setup(self, server: Existing, cluster: Cluster) -> None:
        built = []

        def setup(dsn: str) -> None:
            built.append(dsn)
            install(dsn)

        with RunDatabases.start(server) as run:
            workers = [RunDatabases.join(server, run.run) for _ in range(3)]
            with concurrent.futures.ThreadPoolExecutor() as pool:
                list(pool.map(lambda worker: worker.template(setup), workers))
                made = list(pool.map(lambda pair: pair[1].create(f"gw{pair[0]}"), enumerate(workers)))
            assert len(built) == 1
            assert len({database.name for database in made}) == 3
            workers[0].close()
            assert made[0].name not in names(cluster)
            assert made[1].name in names(cluster)
            # The owner also takes care of workers that died without closing.
        assert not [name for name in names(cluster) if run.run in name]
        for worker in workers:
            worker.close()

    def test_a_failing_setup_leaves_nothing(self, server: Existing, cluster: Cluster) -> None:
        def setup(dsn: str) -> None:
            install(dsn)
            raise KeyError("fault of the app")

        with RunDatabases.start(server) as run:
            with pytest.raises(KeyError, match="fault of the app"):
                run.template(setup)
            assert not [name for name in names(cluster) if run.run in name]
            with pytest.raises(DatabaseRefused, match=r"has no template: call template\(\) before create"):
                run.create("one")
            run.template(install)
            run.create("one")

    def test_an_open_transaction_is_an_error_an_idle_connection_is_not(self, server: Existing) -> None:
        left = []

        def setup(dsn: str) -> None:
            conn = psycopg.connect(dsn)
            conn.execute("create table never_committed ()")
            left.append(conn)

        def careless(dsn: str) -> None:
            setup(dsn)
            left[-1].commit()

        with RunDatabases.start(server) as run:
            with pytest.raises(TemplateUnsettled, match=r"(?s)idle in transaction.*create table never_committed"):
                run.template(setup)
            run.template(careless)
            with connect(run.create("one")) as conn:
                assert conn.execute("select to_regclass('never_committed')::text").fetchone() == ("never_committed",)
        for conn in left:
            conn.close()


class TestCreate:
    @pytest.mark.parametrize("suffix", ["", "Gw0", "a-b", 'x"; drop', "template", "unfinished"])
    def test_suffixes_that_are_no_names(self, run: RunDatabases, suffix: str) -> None:
        with pytest.raises(ValueError, match="no database name suffix"):
            run.create(suffix)

    def test_a_name_that_the_server_would_cut(self, run: RunDatabases) -> None:
        with pytest.raises(ValueError, match="longer than 63 bytes"):
            run.create("x" * 60)

    def test_a_name_that_is_taken(self, run: RunDatabases, shared: Database) -> None:
        with pytest.raises(DatabaseRefused, match=f"database '{shared.name}' exists"):
            run.create("shared")

    def test_a_role_that_may_not(self, cluster: Cluster) -> None:
        with psycopg.connect(cluster.dsn("postgres")) as conn:
            conn.execute("create role humble login")
        server = Existing.from_dsn(cluster.dsn("postgres").replace("postgres@", "humble@"))
        with RunDatabases.start(server) as run, pytest.raises(DatabaseRefused, match='ALTER ROLE "humble" CREATEDB'):
            run.template(install)

    def test_only_databases_of_the_run_are_dropped(self, run: RunDatabases, cluster: Cluster) -> None:
        with pytest.raises(ValueError, match="is not of run"):
            run.drop(Database("postgres", cluster.dsn("postgres")))

    def test_a_run_has_a_form(self, server: Existing) -> None:
        with pytest.raises(ValueError, match="no run 'x'"):
            RunDatabases.join(server, "x")


class TestReset:
    @pytest.mark.parametrize("mode", ["delete", "truncate"])
    def test_empties_all_tables_whatever_refers_to_what(
        self, mode: ResetMode, database: Database, conn: psycopg.Connection[Any]
    ) -> None:
        database.mode = mode
        for _ in range(2):
            conn.execute(ROWS)
            assert 0 not in counts(conn, EMPTIED).values()
            database.reset(conn)
            assert counts(conn, EMPTIED) == dict.fromkeys(EMPTIED, 0)
        assert counts(conn, ["alembic_version"]) == {"alembic_version": 1}

    def test_mode_none_empties_the_queue_only(self, database: Database, conn: psycopg.Connection[Any]) -> None:
        database.mode = "none"
        conn.execute(ROWS)
        conn.execute("delete from receipt")
        database.reset(conn)
        assert counts(conn, ["x_jobs", "x_scheduler_leader", "author"]) == {
            "x_jobs": 0,
            "x_scheduler_leader": 0,
            "author": 2,
        }

    def test_truncate_starts_identity_columns_again(self, database: Database, conn: psycopg.Connection[Any]) -> None:
        database.mode = "truncate"
        for _ in range(2):
            database.reset(conn)
            assert conn.execute("insert into author default values returning id").fetchone() == (1,)

    def test_all_eleven_tables_of_the_schema_are_known(self, conn: psycopg.Connection[Any]) -> None:
        rows = conn.execute(r"select relname from pg_class where relkind = 'r' and relname like 'x\_%'").fetchall()
        assert {name for (name,) in rows} == set(reset.QUEUE_TABLES)

    def test_one_round_trip(self, database: Database, conn: psycopg.Connection[Any]) -> None:
        database.reset(conn)
        with tempfile.TemporaryFile("w+") as trace:
            conn.pgconn.trace(trace.fileno())
            database.reset(conn)
            conn.pgconn.untrace()
            trace.seek(0)
            sent = [line for line in trace if "\tF\t" in line]
        assert [line.split("\t")[3] for line in sent] == ["Query"]

    def test_leaves_the_session_as_it_was(self, database: Database, conn: psycopg.Connection[Any]) -> None:
        conn.execute("set lock_timeout = '7s'")
        database.reset(conn)
        assert conn.execute("show lock_timeout").fetchone() == ("7s",)
        assert conn.execute("show session_replication_role").fetchone() == ("origin",)
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    def test_takes_connections_of_any_kind(self, database: Database) -> None:
        with psycopg.connect(
            database.dsn, autocommit=True, row_factory=dict_row, cursor_factory=psycopg.RawCursor
        ) as conn:
            database.reset(conn)
            assert terminate(conn, leaked_transactions(conn)) == []

    def test_tables_made_later_need_a_refresh(self, run: RunDatabases) -> None:
        clone = run.create("later")
        with connect(clone) as conn:
            clone.reset(conn)
            conn.execute("create table later (n int); insert into later values (1)")
            clone.reset(conn)
            assert counts(conn, ["later"]) == {"later": 1}
            clone.refresh(conn)
            clone.reset(conn)
            assert counts(conn, ["later"]) == {"later": 0}

    def test_other_schemas_and_kept_tables(self, run: RunDatabases) -> None:
        clone = run.create("schemas", schemas=["public", "shop"], kept=["ref_*", "settings"])
        with connect(clone) as conn:
            conn.execute("create schema shop; create table shop.cart (n int); create table shop.ref_tax (n int)")
            conn.execute("create table settings (n int); insert into settings values (1)")
            conn.execute("insert into shop.cart values (1); insert into shop.ref_tax values (1)")
            clone.reset(conn)
            rows = conn.execute(
                "select (select count(*) from shop.cart), (select count(*) from shop.ref_tax), "
                "(select count(*) from settings), (select count(*) from alembic_version)"
            ).fetchone()
            assert rows == (0, 1, 1, 0)

    def test_a_role_without_the_right_to_skip_triggers(self, cluster: Cluster) -> None:
        with psycopg.connect(cluster.dsn("postgres")) as admin:
            admin.execute("create role maker login createdb")
        server = Existing.from_dsn(cluster.dsn("postgres").replace("postgres@", "maker@"))
        with RunDatabases.start(server) as run:
            run.template(install)
            clone = run.create("one")
            with connect(clone) as conn:
                conn.execute(ROWS)
                clone.reset(conn)
                assert counts(conn, EMPTIED) == dict.fromkeys(EMPTIED, 0)

    def test_a_lock_ends_it_in_time_and_the_holder_is_named(
        self, database: Database, conn: psycopg.Connection[Any]
    ) -> None:
        database.lock_timeout = 0.05
        conn.execute(ROWS)
        with psycopg.connect(database.dsn) as other:
            other.execute("update x_jobs set state = 'running'")
            with pytest.raises(ResetBlocked) as caught:
                database.reset(conn)
            said = str(caught.value)
            assert f"pid {other.info.backend_pid}, idle in transaction" in said
            assert "update x_jobs set state = 'running'" in said
            assert 0 not in counts(conn, EMPTIED).values()  # all or nothing
        database.reset(conn)

    def test_needs_autocommit(self, database: Database) -> None:
        with psycopg.connect(database.dsn) as conn, pytest.raises(ValueError, match="autocommit=True"):
            database.reset(conn)

    def test_stays_fast_because_files_are_renewed(self, database: Database, conn: psycopg.Connection[Any]) -> None:
        def size() -> int:
            row = conn.execute("select pg_relation_size('x_scheduler_leader')").fetchone()
            return row[0] if row else 0

        sizes = []
        for _ in range(reset._RENEW_EVERY):
            conn.execute("insert into x_scheduler_leader values ('a', 'b', now())")
            sizes.append(size())
            database.reset(conn)
        assert max(sizes) > 0
        assert size() == 0

    def test_a_renewal_that_is_in_somebodys_way_waits_for_a_later_reset(
        self, database: Database, conn: psycopg.Connection[Any]
    ) -> None:
        with psycopg.connect(database.dsn) as reader:
            reader.execute("select from x_jobs")  # a lock that stops TRUNCATE, not DELETE
            for _ in range(reset._RENEW_EVERY):
                database.reset(conn)
            assert database._resets == reset._RENEW_EVERY
        database.reset(conn)
        assert database._resets == 0

    def test_modes(self) -> None:
        with pytest.raises(ValueError, match="no reset mode 'drop': one of delete, truncate, none"):
            Database("d", "", mode="drop")  # type: ignore[arg-type]


class TestLeaks:
    def test_found_reported_ended_then_reset(self, database: Database, conn: psycopg.Connection[Any]) -> None:
        with connect(database) as idle:
            leaky, failed = psycopg.connect(database.dsn), psycopg.connect(database.dsn)
            leaky.execute("insert into x_scheduler_leader values ('leak', 'b', now())")
            with pytest.raises(psycopg.errors.DivisionByZero):
                failed.execute("select 1 / 0")
            leaks = leaked_transactions(conn)
            assert [(leak.pid, leak.state) for leak in leaks] == [
                (leaky.info.backend_pid, "idle in transaction"),
                (failed.info.backend_pid, "idle in transaction (aborted)"),
            ]
            assert "insert into x_scheduler_leader values ('leak'" in str(leaks[0])
            assert 0 <= leaks[1].age <= leaks[0].age < 60
            assert sorted(terminate(conn, leaks)) == sorted(leak.pid for leak in leaks)
            assert leaked_transactions(conn) == []
            database.reset(conn)
            assert counts(conn, ["x_scheduler_leader"]) == {"x_scheduler_leader": 0}
            assert idle.execute("select 1").fetchone() == (1,)
            leaky.close()
            failed.close()

    def test_other_databases_are_not_looked_at(self, conn: psycopg.Connection[Any], cluster: Cluster) -> None:
        with psycopg.connect(cluster.dsn("postgres")) as other:
            other.execute("select 1")
            assert leaked_transactions(conn) == []
            assert terminate(conn, [Leak(other.info.backend_pid, "", "idle in transaction", 1.0)]) == []
            assert other.execute("select 1").fetchone() == (1,)

    def test_one_that_went_on_is_left_alone(self, database: Database, conn: psycopg.Connection[Any]) -> None:
        with psycopg.connect(database.dsn) as other:
            other.execute("select 1")
            leaks = leaked_transactions(conn)
            other.commit()
            assert terminate(conn, leaks) == []
            assert other.execute("select 1").fetchone() == (1,)


class TestSweep:
    def test_dead_runs_go_and_everything_else_stays(
        self, server: Existing, cluster: Cluster, run: RunDatabases, shared: Database
    ) -> None:
        code = """
import sys
from pytest_xjobs.databases import RunDatabases
from pytest_xjobs.provision import Existing
run = RunDatabases.start(Existing.from_dsn(sys.argv[1]))
run.template(lambda dsn: None)
print(run.create("gw0").name, run.create("gw1").name, flush=True)
sys.stdin.read()
"""
        with subprocess.Popen(
            [sys.executable, "-c", code, cluster.dsn("postgres")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as process:
            assert process.stdout is not None
            dead, in_use = process.stdout.readline().split()
            template = dead.replace("gw0", "template")
            assert run.sweep() == []  # it is alive
            process.kill()
        with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
            token = dead.removesuffix("_gw0").removeprefix("xjobs_test_")
            alive = "select from pg_stat_activity where application_name = %s"
            assert until(lambda: admin.execute(alive, [f"pytest-xjobs {token}"]).fetchone() is None)
            strangers = {"xjobs_test_mine", "xjobs_test_1_abcdef", "xjobs_test_1_ABCDEF01_x", "xjobs_test_2_abcdef01_y"}
            admin.execute("create role stranger")
            for name in strangers:
                admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
            admin.execute("alter database xjobs_test_2_abcdef01_y owner to stranger")

            before = names(cluster)
            # Runs that look from another database see the same.
            with RunDatabases.start(Existing.from_dsn(cluster.dsn("template1"))) as elsewhere:
                with psycopg.connect(cluster.dsn(in_use)):
                    assert sorted(elsewhere.sweep()) == sorted([dead, template])
                assert before - names(cluster) == {dead, template}
                still = "select from pg_stat_activity where datname = %s"
                assert until(lambda: admin.execute(still, [in_use]).fetchone() is None)
                assert elsewhere.sweep() == [in_use]
            assert names(cluster) >= strangers | {shared.name, f"xjobs_test_{run.run}_template"}
            for name in strangers:
                admin.execute(sql.SQL("drop database {}").format(sql.Identifier(name)))

    def test_a_disposable_server_is_not_tidied(self, cluster: Cluster, server: Existing) -> None:
        run = RunDatabases.start(cluster)
        run.template(lambda dsn: None)
        run.close()
        run.close()
        assert f"xjobs_test_{run.run}_template" in names(cluster)
        with RunDatabases.start(server) as other:
            assert other.sweep() == [f"xjobs_test_{run.run}_template"]


@pytest.mark.parametrize("kind", [DatabaseRefused, ResetBlocked, TemplateUnsettled])
def test_errors_pickle(kind: type[DatabaseRefused]) -> None:
    error = kind("database 'x' exists", "drop it")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (kind, str(error), error.__dict__)
