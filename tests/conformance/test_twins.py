"""Memory answers every statement that Postgres is sent, with the same parameters."""

from __future__ import annotations

import inspect

import pytest

from xjobs.drivers.memory import TWINS
from xjobs.sql import statements


def test_every_statement_has_a_twin_and_no_twin_is_left_over() -> None:
    assert sorted(TWINS) == sorted(statements())


@pytest.mark.parametrize("name", sorted(TWINS))
def test_a_twin_takes_the_parameters_of_its_statement(name: str) -> None:
    session, *parameters = inspect.signature(TWINS[name]).parameters.values()
    assert tuple(parameter.name for parameter in parameters) == statements()[name].parameters
    assert {parameter.kind for parameter in parameters} <= {inspect.Parameter.KEYWORD_ONLY}
    assert session.name == "session"


@pytest.mark.parametrize("name", sorted(TWINS))
def test_a_twin_names_its_statement(name: str) -> None:
    assert TWINS[name].__doc__ == f"Twin of {name}."
