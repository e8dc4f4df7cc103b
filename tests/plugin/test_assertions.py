"""Assertions on the queue: what they find, and what they say when they do not find it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from textwrap import dedent
from typing import Any
from uuid import UUID

import pytest
from inner_run import Inner

import xjobs
from pytest_xjobs.clock import Clock
from pytest_xjobs.queue import XjobsQueue
from xjobs import NO_KEY, JobHandle, job

START = datetime(2031, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
TOKEN = UUID(int=9)


@dataclass
class Address:
    street: str
    tags: list[str]


@pytest.fixture
def mail(xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> JobHandle[..., ..., None]:
    @job(key=NO_KEY, name="mail", tenant=lambda to: "acme" if to == "acme" else "other", retry=2)
    def mail(to: str, tries: int = 1, token: UUID | None = None) -> None:
        if tries < 0:
            raise ValueError(f"no tries for {to}")

    xjobs_clock.freeze(START)
    return mail


def failure(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The text of a failed assertion, with ids as `<1>`, `<2>` in the order in which they are named."""
    with pytest.raises(AssertionError) as failed:
        call(*args, **kwargs)
    text, ids = str(failed.value), dict[str, str]()
    for found in re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", text):
        ids.setdefault(found, f"<{len(ids) + 1}>")
    for found, short in ids.items():
        text = text.replace(found, short)
    assert len(text.splitlines()) < 25
    return text


def texts(expected: str) -> str:
    return dedent(expected).strip("\n")


# What is found -------------------------------------------------------------------------------------------------------


class TestFound:
    def test_the_row_of_a_whole_call(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        answer = mail.enqueue(to="a@x", token=TOKEN)
        row = xjobs_queue.assert_enqueued(mail.call(to="a@x", token=TOKEN))
        assert (row.id, row.state, row.input) == (answer.id, "ready", {"to": "a@x", "tries": 1, "token": str(TOKEN)})
        # Positional and in full it is the same call.
        assert xjobs_queue.assert_enqueued(mail.call("a@x", 1, TOKEN)) == row

    def test_any_job_of_a_handle(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        answer = mail.enqueue(to="a@x")
        assert xjobs_queue.assert_enqueued(mail).id == answer.id

    def test_a_part_of_the_input_by_the_values_that_the_app_has(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        mail.enqueue(to="a@x")
        answer = mail.enqueue(to="b@x", token=TOKEN)
        assert xjobs_queue.assert_enqueued(mail, input={"token": TOKEN}).id == answer.id
        assert xjobs_queue.assert_enqueued(mail, input={"token": str(TOKEN), "tries": 1}).id == answer.id
        assert xjobs_queue.assert_enqueued(mail, input={}).input["to"] == "a@x"

    def test_the_first_enqueued_when_several_match(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        answers = [mail.using(delay=-number).enqueue(to="a@x") for number in range(5)]
        assert xjobs_queue.assert_enqueued(mail).id == answers[0].id

    def test_exactly_so_many_in_the_order_of_their_enqueues(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        answers = [mail.enqueue(to="a@x", tries=number) for number in range(3)]
        mail.enqueue(to="b@x")
        rows = xjobs_queue.assert_enqueued(mail, input={"to": "a@x"}, count=3)
        assert [row.id for row in rows] == [answer.id for answer in answers]
        assert xjobs_queue.assert_enqueued(mail, input={"to": "nobody"}, count=0) == []

    def test_by_queue_key_and_tenant(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        mail.enqueue(to="a@x")
        answer = mail.using(queue="mail", key="the key").enqueue(to="acme")
        conditions: list[dict[str, Any]] = [{"queue": "mail"}, {"key": "the key"}, {"tenant": "acme"}]
        for condition in conditions:
            assert xjobs_queue.assert_enqueued(mail, **condition).id == answer.id
        xjobs_queue.assert_enqueued(mail, queue="default", tenant="other", count=1)

    def test_due_exactly_and_from_the_enqueue_on(self, xjobs_queue: XjobsQueue, xjobs_clock: Clock, mail: Any) -> None:
        answer = mail.using(delay=HOUR).enqueue(to="a@x")
        xjobs_clock.advance(minutes=10)
        for due in (START + HOUR, (START + HOUR).astimezone(timezone(timedelta(hours=5))), HOUR, 3600, 3600.0):
            assert xjobs_queue.assert_enqueued(mail, due=due).id == answer.id
        assert xjobs_queue.assert_enqueued(mail.using(run_at=START + HOUR).call(to="a@x")).id == answer.id
        assert xjobs_queue.assert_enqueued(mail.using(delay=HOUR).call(to="a@x")).id == answer.id
        mail.enqueue(to="now")
        assert xjobs_queue.assert_enqueued(mail, due=0).input["to"] == "now"

    def test_the_time_of_the_enqueue_is_the_moved_one(
        self, xjobs_queue: XjobsQueue, xjobs_clock: Clock, mail: Any
    ) -> None:
        mail.enqueue(to="a@x")
        xjobs_clock.advance(days=7)
        mail.enqueue(to="b@x")
        assert xjobs_queue.assert_enqueued(mail, due=START).input["to"] == "a@x"
        assert xjobs_queue.assert_enqueued(mail, due=START + timedelta(days=7)).input["to"] == "b@x"

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("queue", "mail"),
            ("key", "the key"),
            ("tenant", "acme"),
            ("id", UUID(int=1)),
            ("run_id", UUID(int=2)),
            ("enqueued_by", "ann"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("run_at", START + HOUR),
            ("delay", HOUR),
        ],
    )
    def test_options_of_a_call_and_of_a_handle_are_compared(
        self, xjobs_queue: XjobsQueue, mail: Any, option: str, value: Any
    ) -> None:
        special, expected = mail.using(**{option: value}), {"to": "a@x"}
        mail.enqueue(**expected)
        for wanted in (special, special.call(**expected)):
            xjobs_queue.assert_not_enqueued(wanted)
        answer = special.enqueue(**expected)
        for wanted in (special, special.call(**expected)):
            assert xjobs_queue.assert_enqueued(wanted, count=1)[0].id == answer.id
            xjobs_queue.assert_enqueued(mail, count=2)

    def test_an_argument_goes_before_the_option_of_the_call(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        mail.using(queue="mail").enqueue(to="a@x")
        xjobs_queue.assert_enqueued(mail.using(queue="other").call(to="a@x"), queue="mail")

    def test_jobs_that_have_ended_are_not_queued_any_more(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        mail.enqueue(to="a@x")
        xjobs_queue.drain()
        xjobs_queue.assert_not_enqueued(mail)
        mail.enqueue(to="a@x")
        xjobs_queue.assert_enqueued(mail, count=1)

    def test_a_job_that_waits_for_its_retry_is(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        mail.enqueue(to="a@x", tries=-1)
        xjobs_queue.drain(errors="collect")
        assert xjobs_queue.assert_enqueued(mail).attempt == 1

    def test_nested_input_and_what_the_body_would_receive_decide(self, xjobs_queue: XjobsQueue) -> None:
        @job(key=NO_KEY)
        def ship(to: Address, price: Decimal, weight: float, on: date, extra: Any = None) -> None: ...

        values: dict[str, Any] = {
            "to": Address("Main", ["a", "b"]),
            "price": Decimal(3),
            "weight": 2,
            "on": date(2031, 1, 2),
        }
        ship.enqueue(**values)
        xjobs_queue.assert_enqueued(ship.call(**values))
        # 2 and 2.0 for a float, 3 and "3" for a Decimal: one call, however it was written.
        xjobs_queue.assert_enqueued(ship.call(**{**values, "weight": 2.0}))
        part: dict[str, Any]
        for part in ({"weight": 2.0}, {"weight": 2}, {"price": "3"}, {"on": "2031-01-02"}, {"to": values["to"]}):
            xjobs_queue.assert_enqueued(ship, input=part)
        xjobs_queue.assert_enqueued(ship, input={"to": {"street": "Main", "tags": ["a", "b"]}})
        for part in ({"weight": 2.5}, {"to": Address("Main", ["b", "a"])}, {"on": date(2031, 1, 3)}):
            xjobs_queue.assert_not_enqueued(ship, input=part)

    @pytest.mark.parametrize(
        ("stored", "other"),
        [
            (1, True),
            (0, False),
            (1, "1"),
            ([1], [True]),
            ({"a": [0]}, {"a": [False]}),
            (None, False),
            ([], {}),
            ("", None),
        ],
    )
    def test_json_values_that_python_takes_for_equal_are_told_apart(
        self, xjobs_queue: XjobsQueue, stored: Any, other: Any
    ) -> None:
        @job(key=NO_KEY)
        def note(value: Any) -> None: ...

        note.enqueue(value=stored)
        for wanted in (note.call(value=other), note):
            whole = wanted is not note
            xjobs_queue.assert_not_enqueued(wanted, input=None if whole else {"value": other})
        xjobs_queue.assert_enqueued(note.call(value=stored))

    async def test_in_an_async_test(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        answer = await mail.aenqueue(to="a@x")
        assert xjobs_queue.assert_enqueued(mail).id == answer.id
        await xjobs_queue.adrain()
        xjobs_queue.assert_state(answer, "done")

    def test_many_rows(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        xjobs.enqueue_many([mail.call(to=f"{number}@x") for number in range(1_000)])
        assert len(xjobs_queue.assert_enqueued(mail, count=1_000)) == 1_000
        xjobs_queue.assert_enqueued(mail.call(to="0@x"))
        xjobs_queue.assert_enqueued(mail.call(to="999@x"))


# What is said --------------------------------------------------------------------------------------------------------


class TestNearMiss:
    def test_nothing_was_enqueued(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        assert failure(xjobs_queue.assert_enqueued, mail.call(to="a@x", tries=5)) == texts("""
            no live job mail(to='a@x', tries=5, token=None)
              the queue is empty: no enqueue has been committed
        """)
        assert failure(xjobs_queue.assert_enqueued, mail) == texts("""
            no live job mail(...)
              the queue is empty: no enqueue has been committed
        """)

    def test_the_nearest_three_best_first_and_the_rest_counted(
        self, xjobs_queue: XjobsQueue, xjobs_clock: Clock, mail: Any
    ) -> None:
        @job(key=NO_KEY, queue="mail")
        def send_email(to: str, tries: Any = 5) -> None: ...

        @job(key=NO_KEY)
        def resize(number: int) -> None: ...

        for number in range(35):
            resize.enqueue(number=number)
        for _ in range(5):
            mail.enqueue(to="somebody")
        send_email.using(delay=HOUR, queue="default", tenant="acme").enqueue(to="b@x", tries="5")
        send_email.using(delay=HOUR).enqueue(to="a@x", tries="5")
        send_email.using(delay=timedelta(minutes=59, seconds=59.4), queue="default").enqueue(to="a@x", tries=5)
        send_email.using(delay=2 * HOUR, queue="urgent").enqueue(to="c@x", tries=6)
        expected = send_email.using(delay=HOUR).call(to="a@x", tries=5)
        assert failure(xjobs_queue.assert_enqueued, expected, queue="mail") == texts("""
            no live job send_email(to='a@x', tries=5) with queue 'mail', due 1:00:00 after its enqueue
              near: send_email(to='a@x', tries='5') delayed, queue 'mail', id <1>
                input.tries is '5' (str), expected 5 (int)
              near: send_email(to='a@x', tries=5) delayed, queue 'default', id <2>
                queue is 'default', expected 'mail'
                due 2031-01-01T12:59:59.400000+00:00, 0:00:00.600000 earlier than expected
              near: send_email(to='b@x', tries='5') delayed, queue 'default', id <3>
                input.to is 'b@x', expected 'a@x'
                input.tries is '5' (str), expected 5 (int)
                queue is 'default', expected 'mail'
              and 1 more live job named 'send_email'
              other live jobs: resize x35, mail x5
        """)

    def test_a_partial_input_names_what_was_asked_for(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        mail.enqueue(to="a@x", tries=1)
        assert failure(xjobs_queue.assert_enqueued, mail, input={"tries": 2}, key="k", tenant="acme") == texts("""
            no live job mail(tries=2, ...) with key 'k', tenant 'acme'
              near: mail(to='a@x', tries=1, token=None) ready, queue 'default', id <1>
                input.tries is 1, expected 2
                key is '<1>', expected 'k'
                tenant is 'other', expected 'acme'
        """)

    def test_due_later_and_exact(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        mail.using(run_at=START + timedelta(days=2, microseconds=1)).enqueue(to="a@x")
        assert failure(xjobs_queue.assert_enqueued, mail, due=START + timedelta(days=1)) == texts("""
            no live job mail(...) with due 2031-01-02T12:00:00+00:00
              near: mail(to='a@x', tries=1, token=None) delayed, queue 'default', id <1>
                due 2031-01-03T12:00:00.000001+00:00, 1 day, 0:00:00.000001 later than expected
        """)

    def test_a_finished_job_that_would_have_matched_is_mentioned(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        mail.enqueue(to="a@x")
        mail.enqueue(to="b@x")
        xjobs_queue.drain()
        assert failure(xjobs_queue.assert_enqueued, mail.call(to="a@x")) == texts("""
            no live job mail(to='a@x', tries=1, token=None)
              it would match <1>, but that one is done
        """)

    def test_a_dead_job_that_would_have_matched_says_of_what_it_died(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        mail.enqueue(to="a\nx", tries=-1)
        xjobs_queue.drain(advance=True, errors="collect")
        assert failure(xjobs_queue.assert_enqueued, mail, input={"to": "a\nx"}) == texts(r"""
            no live job mail(to='a\nx', ...)
              it would match <1>, but that one is dead (ValueError: no tries for a)
        """)

    def test_only_other_jobs_are_queued(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        @job(key=NO_KEY)
        def resize() -> None: ...

        resize.enqueue()
        assert failure(xjobs_queue.assert_enqueued, mail, input={"to": "a@x"}) == texts("""
            no live job mail(to='a@x', ...)
              other live jobs: resize x1
        """)

    def test_no_more_than_four_differences_of_a_row(self, xjobs_queue: XjobsQueue) -> None:
        @job(key=NO_KEY)
        def wide(a: int, b: int, c: int, d: int, e: int, f: int) -> None: ...

        wide.enqueue(a=1, b=2, c=3, d=4, e=5, f=6)
        assert failure(xjobs_queue.assert_enqueued, wide.call(a=0, b=0, c=0, d=0, e=0, f=0)) == texts("""
            no live job wide(a=0, b=0, c=0, d=0, e=0, f=0)
              near: wide(a=1, b=2, c=3, d=4, e=5, f=6) ready, queue 'default', id <1>
                input.a is 1, expected 0
                input.b is 2, expected 0
                input.c is 3, expected 0
                input.d is 4, expected 0
                and 2 more differences
        """)

    def test_input_is_shown_in_the_order_of_the_declaration(self, xjobs_queue: XjobsQueue) -> None:
        # jsonb holds shorter keys first.
        @job(key=NO_KEY)
        def note(longest: int, long: int, l: int) -> None: ...  # noqa: E741

        note.enqueue(longest=1, long=2, l=3)
        assert "near: note(longest=1, long=2, l=3) ready" in failure(xjobs_queue.assert_enqueued, note, queue="x")

    def test_everything_at_once_stays_within_25_lines(self, xjobs_queue: XjobsQueue) -> None:
        @job(key=NO_KEY)
        def wide(a: int, b: int, c: int, d: int, e: int, f: int) -> None: ...

        def declare(name: str) -> JobHandle[..., ..., None]:
            @job(key=NO_KEY, name=name)
            def other() -> None: ...

            return other

        for _ in range(10):
            wide.enqueue(a=0, b=0, c=0, d=0, e=0, f=0)
        xjobs_queue.drain()
        for number in range(10):
            wide.enqueue(a=1, b=2, c=3, d=4, e=5, f=number)
            declare(f"other{number}").enqueue()
        text = failure(xjobs_queue.assert_enqueued, wide.call(a=0, b=0, c=0, d=0, e=0, f=0))
        assert len(text.splitlines()) == 24
        assert text.splitlines()[-2] == "  and 7 more live jobs named 'wide'"

    def test_long_values_are_cut_and_differences_deep_inside_are_shown(
        self, xjobs_queue: XjobsQueue, mail: Any
    ) -> None:
        mail.enqueue(to="x" * 100_000 + "here" + "x" * 100)
        text = failure(xjobs_queue.assert_enqueued, mail.call(to="x" * 100_000 + "hare" + "x" * 100))
        assert len(text) < 1_000
        x = "x" * 19
        assert text.splitlines()[2] == (
            f"    input.to is '{x}here{'x' * 37}' (from character 99981 of 100104),"
            f" expected '{x}hare{'x' * 37}' (from character 99981 of 100104)"
        )

    def test_too_few_are_shown_with_the_near_ones(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        mail.enqueue(to="a@x")
        mail.enqueue(to="b@x")
        assert failure(xjobs_queue.assert_enqueued, mail.call(to="a@x"), count=2) == texts("""
            1 live job mail(to='a@x', tries=1, token=None), expected 2
              mail(to='a@x', tries=1, token=None) ready, queue 'default', id <1>
              near: mail(to='b@x', tries=1, token=None) ready, queue 'default', id <2>
                input.to is 'b@x', expected 'a@x'
        """)

    def test_too_many_are_listed_up_to_ten(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        for _ in range(12):
            mail.enqueue(to="a@x")
        lines = failure(xjobs_queue.assert_enqueued, mail, count=2).splitlines()
        assert lines[0] == "12 live jobs mail(...), expected 2"
        assert lines[-1] == "  and 2 more"
        assert len(lines) == 12

    def test_the_failure_points_at_the_test_and_not_at_us(self, inner: Inner) -> None:
        inner.file(
            """
            import xjobs

            @xjobs.job(key=xjobs.NO_KEY)
            def mail(): ...

            def test_it(xjobs_queue):
                xjobs_queue.assert_enqueued(mail)  # the line

            def test_state(xjobs_queue):
                xjobs_queue.assert_state(mail.enqueue(), "done")  # the line
            """
        )
        result = inner.run()
        result.assert_outcomes(failed=2)
        result.stdout.fnmatch_lines([">*# the line", "E*no live job mail(...)", "test_it.py:7: AssertionError"])
        result.stdout.fnmatch_lines([">*# the line", "E*job is ready, expected done*"])
        result.stdout.no_fnmatch_line("*pytest_xjobs*queue.py*")


class TestNotEnqueued:
    def test_passes_when_none_matches(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        mail.enqueue(to="a@x")
        xjobs_queue.assert_not_enqueued(mail.call(to="b@x"))
        xjobs_queue.assert_not_enqueued(mail, queue="mail")
        xjobs_queue.assert_not_enqueued(mail, due=HOUR)

    def test_shows_what_is_queued(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        mail.enqueue(to="a@x")
        assert failure(xjobs_queue.assert_not_enqueued, mail, input={"to": "a@x"}) == texts("""
            a live job mail(to='a@x', ...) is queued:
              mail(to='a@x', tries=1, token=None) ready, queue 'default', id <1>
        """)
        mail.enqueue(to="a@x")
        assert failure(xjobs_queue.assert_not_enqueued, mail).endswith("id <1>\n  and 1 more")


class TestState:
    def test_by_whatever_stands_for_a_job(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        answer = mail.enqueue(to="a@x")
        row = xjobs_queue.assert_enqueued(mail)
        (run,) = xjobs_queue.drain().runs
        for reference in (answer, row, run, answer.id, str(answer.id)):
            assert xjobs_queue.assert_state(reference, "done").id == answer.id

    def test_the_row_is_as_it_is_now(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        mail.enqueue(to="a@x", tries=-1)
        row = xjobs_queue.assert_enqueued(mail)
        xjobs_queue.drain(errors="collect")
        assert xjobs_queue.assert_state(row, "ready").attempt == 1

    def test_another_state_shows_the_last_error_and_the_times(
        self, xjobs_queue: XjobsQueue, xjobs_clock: Clock, mail: Any
    ) -> None:
        answer = mail.enqueue(to="a@x", tries=-1)
        xjobs_queue.drain(errors="collect", advance=True)
        now = xjobs_clock.now.isoformat()
        assert failure(xjobs_queue.assert_state, answer, "done") == texts(f"""
            job is dead, expected done: mail(to='a@x', tries=-1, token=None) dead, queue 'default', id <1>
              attempt 2 of 2, due {now}, now {now}
              last error: ValueError: no tries for a@x
        """)

    def test_a_delayed_job(self, xjobs_queue: XjobsQueue, mail: Any) -> None:
        answer = mail.using(delay=HOUR).enqueue(to="a@x")
        assert failure(xjobs_queue.assert_state, answer, "running") == texts("""
            job is delayed, expected running: mail(to='a@x', tries=1, token=None) delayed, queue 'default', id <1>
              attempt 0 of 2, due 2031-01-01T13:00:00+00:00, now 2031-01-01T12:00:00+00:00
        """)

    def test_no_such_job(self, xjobs_queue: XjobsQueue) -> None:
        assert (
            failure(xjobs_queue.assert_state, UUID(int=3), "done") == "there is no job <1>, expected one that is done"
        )


# Misuse --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assertion", ["assert_enqueued", "assert_not_enqueued"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mail"], "'mail' is not a job: give a handle, or handle.call(...)"),
        ([print], "<built-in function print> is not a job: give a handle, or handle.call(...)"),
        ([None], "None is not a job: give a handle, or handle.call(...)"),
    ],
)
def test_what_is_not_a_job_is_refused(
    xjobs_queue: XjobsQueue, assertion: str, arguments: list[Any], message: str
) -> None:
    with pytest.raises(xjobs.Invariant) as refused:
        getattr(xjobs_queue, assertion)(*arguments)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("call", {"input": {"to": "b"}}, "both mail(to='a', tries=1, token=None) and input={'to': 'b'} are given"),
        ("handle", {"input": {"ot": "b"}}, "job 'mail' has no parameter 'ot': its parameters are (to: "),
        ("handle", {"input": {"to": float("nan")}}, "input.to is nan: pass a finite number, or None"),
        ("handle", {"input": "to"}, "input is 'to': give a dict of parameters"),
        ("handle", {"queue": ""}, "queue is '': give a text that is not empty"),
        ("handle", {"key": 3}, "key is 3: give a text that is not empty"),
        ("handle", {"due": "1h"}, "due is '1h': give a timedelta or a number of seconds"),
        ("handle", {"due": datetime(2031, 1, 1)}, "due is the naive datetime 2031-01-01T00:00:00"),  # noqa: DTZ001
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(
    xjobs_queue: XjobsQueue, mail: Any, kind: str, arguments: dict[str, Any], message: str
) -> None:
    wanted = mail if kind == "handle" else mail.call(to="a")
    for assertion in (xjobs_queue.assert_enqueued, xjobs_queue.assert_not_enqueued):
        with pytest.raises(xjobs.Invariant) as refused:
            assertion(wanted, **arguments)
        assert str(refused.value).startswith(message)


@pytest.mark.parametrize("count", [-1, 1.0, True, "1"])
def test_a_bad_count_is_refused(xjobs_queue: XjobsQueue, mail: Any, count: Any) -> None:
    with pytest.raises(xjobs.Invariant, match=f"^count is {count!r}: give a whole number from 0"):
        xjobs_queue.assert_enqueued(mail, count=count)


def test_a_loose_keyword_of_the_input_is_a_type_error(xjobs_queue: XjobsQueue, mail: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'to'"):
        xjobs_queue.assert_enqueued(mail, to="a@x")  # type: ignore[call-overload]


def test_assert_state_refuses_what_is_not_one_job_and_what_is_no_state(xjobs_queue: XjobsQueue, mail: Any) -> None:
    wrong: Any
    for wrong in (mail, mail.call(to="a"), None, 7):
        with pytest.raises(xjobs.Invariant, match="is not one job of the queue: give its id"):
            xjobs_queue.assert_state(wrong, "done")
    with pytest.raises(xjobs.IdInvalid, match=r"^id is 'zz'"):
        xjobs_queue.assert_state("zz", "done")
    with pytest.raises(xjobs.Invariant, match=r"^state is 'succeeded': name one of ready, delayed, "):
        xjobs_queue.assert_state(mail.enqueue(to="a"), "succeeded")
