"""The tree of errors: codes, texts, data, pickling."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import xjobs
from xjobs import errors

CLASSES = [getattr(errors, name) for name in errors.__all__]


def _tree(kind: type[xjobs.Error]) -> list[type[xjobs.Error]]:
    return [kind, *(each for below in kind.__subclasses__() for each in _tree(below))]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_states_its_fact_its_remedy_and_its_data(kind: type[xjobs.Error]) -> None:
    error = kind("n is 3", "give 4", path="n", value=3)
    assert str(error) == "n is 3: give 4"
    assert (error.fact, error.remedy, error.path, error.value) == ("n is 3", "give 4", "n", 3)
    assert isinstance(error, xjobs.Error)
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = error.colour


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_pickles_and_copies_whole(kind: type[xjobs.Error], protocol: int) -> None:
    error = kind("n is 3", "give 4", path="n", value=[3])
    error.add_note("in job work")
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert (str(again), again.fact, again.remedy, again.data) == (str(error), "n is 3", "give 4", error.data)
        assert (again.path, again.code, again.__notes__) == ("n", kind.code, ["in job work"])


def test_without_a_remedy_the_fact_stands_alone() -> None:
    assert str(xjobs.Error("it broke", "")) == "it broke"


def test_codes_are_distinct_and_of_one_form() -> None:
    codes = [kind.code for kind in _tree(xjobs.Error) if kind.__module__ == errors.__name__]
    assert len(set(codes)) == len(codes)
    assert all(code.startswith("X_") and code == code.upper() for code in codes)


def test_every_class_is_public_and_listed() -> None:
    own = {kind.__name__ for kind in _tree(xjobs.Error) if kind.__module__ == errors.__name__}
    assert own == set(errors.__all__)
    assert own <= set(xjobs.__all__)
    for name in own:
        assert name in (errors.__doc__ or "")


PARENTS: dict[type[xjobs.Error], type[Any]] = {
    xjobs.IdempotencyRequired: xjobs.DeclarationInvalid,
    xjobs.TenantRequired: xjobs.DeclarationInvalid,
    xjobs.InputInvalid: xjobs.Invariant,
    xjobs.IdInvalid: xjobs.Invariant,
    xjobs.ClaimQueuesEmpty: xjobs.Invariant,
    xjobs.PageInvalid: xjobs.Invariant,
    xjobs.SchemaMissing: xjobs.DriverUnavailable,
    xjobs.DdlSyntaxInvalid: xjobs.DdlSourceInvalid,
    xjobs.Invariant: ValueError,
}


@pytest.mark.parametrize("kind", PARENTS)
def test_an_error_is_caught_as_what_it_is_a_kind_of(kind: type[xjobs.Error]) -> None:
    with pytest.raises(PARENTS[kind]):
        raise kind("f", "r")


CODES = {
    "DeclarationInvalid": "X_JOB_DECLARATION_INVALID",
    "IdempotencyRequired": "X_IDEMPOTENCY_REQUIRED",
    "TenantRequired": "X_JOB_TENANT_REQUIRED",
    "Invariant": "X_INVARIANT",
    "IdInvalid": "X_ID_INVALID",
    "ClaimQueuesEmpty": "X_JOB_CLAIM_QUEUES_EMPTY",
    "PageInvalid": "X_JOB_PAGE_INVALID",
    "JobDuplicate": "X_JOB_DUPLICATE",
    "RowStateUnknown": "X_JOB_ROW_STATUS_UNKNOWN",
    "DriverUnavailable": "X_DRIVER_UNAVAILABLE",
}


@pytest.mark.parametrize("name", CODES)
def test_a_code_never_changes(name: str) -> None:
    assert getattr(xjobs, name).code == CODES[name]
