"""What a declaration may say about its concurrency limit."""

from __future__ import annotations

from typing import Any

import pytest

import xjobs
from xjobs import NO_KEY, Limit, job
from xjobs.concurrency import slot_key


def _declare(limit: Any) -> Any:
    @job(key=NO_KEY, concurrency_limit=limit)
    def work(n: int, who: str = "") -> None: ...

    return work


@pytest.mark.parametrize(
    ("limit", "named"),
    [
        (0, "concurrency_limit is 0"),
        (-1, "concurrency_limit is -1"),
        (1.5, "concurrency_limit is 1.5"),
        (float("nan"), "nan"),
        (True, "concurrency_limit is True"),
        ("4", "concurrency_limit is '4'"),
        (Limit(0, key="{n}"), "concurrency_limit is 0"),
        (Limit(1, key="{n}", when_busy="drop"), "when_busy of its concurrency_limit is 'drop'"),  # type: ignore[arg-type]
        (Limit(1, when_busy="fail"), "has no key"),
        (Limit(1, key=7), "key of its concurrency_limit is 7"),  # type: ignore[arg-type]
        (Limit(1, key="{nobody}"), "names 'nobody'"),
        (Limit(1, key="constant"), "the same for every input"),
        (Limit(1, key=""), "the same for every input"),
        (Limit(1, key="{"), "write it as a format text"),
        (Limit(1, key=lambda other: other), "names 'other'"),
    ],
)
def test_a_limit_that_cannot_be_is_refused_at_the_declaration(limit: Any, named: str) -> None:
    with pytest.raises(xjobs.DeclarationInvalid) as refused:
        _declare(limit)
    assert named in str(refused.value)
    assert "'work'" in str(refused.value)


def test_a_number_is_a_limit_of_the_job_and_none_is_none() -> None:
    assert _declare(4).concurrency_limit == Limit(4)
    assert _declare(None).concurrency_limit is None
    assert _declare(4).slot_key({"n": 1}) == "job:work"


def test_a_keyed_limit_has_slots_by_key() -> None:
    assert _declare(Limit(2, key="{who}-{n}")).slot_key({"n": 1, "who": "ann"}) == "job-key:work:ann-1"
    assert _declare(Limit(2, key=lambda who: who)).slot_key({"n": 1, "who": "ann"}) == "job-key:work:ann"


def test_the_names_of_jobs_cannot_make_two_keys_one() -> None:
    assert slot_key("a:b", "c") != slot_key("a", "b:c")
    assert slot_key("a", None) != slot_key("a", "")


def test_the_key_is_checked_where_the_call_is_made_and_not_shown() -> None:
    work = _declare(Limit(1, key="{who}"))
    with pytest.raises(xjobs.DeclarationInvalid) as refused:
        work.call(n=1, who="secret" * 40)
    assert "secret" not in str(refused.value)
    assert "240 characters" in str(refused.value)
