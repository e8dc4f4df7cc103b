"""The states of a job and the sets that decisions read."""

from __future__ import annotations

import itertools

import pytest

import xjobs
from xjobs import sql, states


def test_every_state_is_live_or_finished() -> None:
    assert set(states.LIVE) | set(states.FINISHED) == set(states.ALL)
    assert not set(states.LIVE) & set(states.FINISHED)
    assert len(states.ALL) == len(set(states.ALL)) == 8


def test_what_waits_is_live_and_does_not_run() -> None:
    assert set(states.WAITING) == set(states.LIVE) - {"running"}


def test_stats_count_all_but_done_and_cancelled() -> None:
    assert set(states.ALL) - set(states.COUNTED) == {"done", "cancelled"}


@pytest.mark.parametrize(
    ("index", "names"),
    [
        ("x_jobs_name_tenant_idempotency_live_idx", states.LIVE),
        ("x_jobs_claim_idx", states.WAITING),
        ("x_jobs_order_idx", states.WAITING),
        ("x_jobs_finished_idx", states.FINISHED),
        ("x_jobs_depth_idx", states.COUNTED),
    ],
)
def test_the_indexes_are_over_the_same_sets(index: str, names: tuple[str, ...]) -> None:
    (line,) = [line for line in sql.SQL_JOBS_TABLE.splitlines() if f"if not exists {index} " in line]
    listed = line.partition("where state in (")[2].partition(")")[0]
    assert {name.strip(" '") for name in listed.split(",")} == set(names)


@pytest.mark.parametrize("state", states.ALL)
def test_a_known_state_is_answered(state: str) -> None:
    assert states.check_state(state) == state


@pytest.mark.parametrize("state", ["", "Ready", "archived", "queued"])
def test_an_unknown_state_names_itself_and_its_column(state: str) -> None:
    with pytest.raises(xjobs.RowStateUnknown, match=r"x_jobs\.state holds") as caught:
        states.check_state(state)
    assert caught.value.state == state


@pytest.mark.parametrize(("dead_letter", "fail", "park"), list(itertools.product([False, True], repeat=3)))
def test_the_first_flag_of_a_nack_decides(dead_letter: bool, fail: bool, park: bool) -> None:
    expected = "dead" if dead_letter else "failed" if fail else "suspended" if park else "ready"
    assert states.nack_state(dead_letter=dead_letter, fail=fail, park=park) == expected
