"""Lists come to Postgres as they are, whatever their lengths, repeats and gaps: our own packing of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from pytest_xjobs.provision import Server
from xjobs.bridge import run_sync
from xjobs.drivers.postgres import PostgresDriver
from xjobs.sql import Statement

ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "text": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5),
    "uuid": st.uuids(),
    "timestamptz": st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),  # noqa: DTZ001
    "interval": st.timedeltas(timedelta(days=-(10**6)), timedelta(days=10**6)),
}


@pytest.fixture(scope="module")
def driver(server: Server) -> Iterator[PostgresDriver]:
    driver = PostgresDriver(server.dsn(server.maintenance_dbname))  # nothing is written there
    yield driver
    run_sync(driver.aclose())


@pytest.mark.parametrize("kind", ELEMENTS)
def test_a_list_arrives_as_it_was(driver: PostgresDriver, kind: str) -> None:
    statement = Statement(f"select element from unnest($1::{kind}[]) element", "SQL_ECHO", ("given",), "echoes")
    element = ELEMENTS[kind]

    @settings(max_examples=60, deadline=None)
    @given(
        st.one_of(
            st.lists(element, max_size=20),
            st.lists(st.none() | element, max_size=20),
            element.flatmap(lambda one: st.integers(1, 9).map(lambda count: [one] * count)),
        )
    )
    def check(given: list[Any]) -> None:
        assert [row[0] for row in run_sync(driver.run(statement, given=given))] == given

    check()


def test_texts_of_one_length_in_characters_need_not_be_of_one_in_bytes(driver: PostgresDriver) -> None:
    statement = Statement("select element from unnest($1::text[]) element", "SQL_ECHO", ("given",), "echoes")
    given = ["aé", "ab", "日本", "", "x" * 70_000]
    assert [row[0] for row in run_sync(driver.run(statement, given=given))] == given
