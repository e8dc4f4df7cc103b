"""Declaring jobs: what is accepted, what is refused with which code, and what a handle is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import xjobs
from xjobs import registry
from xjobs.jobs import EnqueueOptions
from xjobs.retry import Retry

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


def declare(body: Callable[..., Any], **options: Any) -> Any:
    return xjobs.job(**{"key": xjobs.NO_KEY, **options})(body)


def work(n: int, name: str = "x") -> str:
    """Do it."""
    return f"{name}{n}"


class TestHandle:
    def test_calling_it_runs_the_plain_function(self) -> None:
        handle = declare(work)
        assert handle(3, name="a") == "a3"

    async def test_calling_an_async_one_answers_its_coroutine(self) -> None:
        async def later(n: int) -> int:
            return n

        handle = declare(later)
        assert handle.is_async
        assert await handle(4) == 4

    def test_it_looks_like_its_function(self) -> None:
        handle = declare(work)
        assert (handle.__name__, handle.__doc__, handle.__module__) == ("work", "Do it.", __name__)
        assert inspect.signature(handle) == inspect.signature(work)
        assert repr(handle) == "<job 'work'>"

    def test_defaults(self) -> None:
        handle = declare(work)
        assert (handle.name, handle.queue, handle.retry, handle.takes_context) == ("work", "default", Retry(), False)

    def test_options(self) -> None:
        handle = declare(work, name="app.work", queue="mail", retry=5)
        assert (handle.name, handle.queue, handle.retry.attempts) == ("app.work", "mail", 5)

    @pytest.mark.parametrize("kind", [xjobs.Context, xjobs.AsyncContext])
    def test_the_context_is_no_input(self, kind: type) -> None:
        if kind is xjobs.Context:

            def body(ctx: xjobs.Context, n: int) -> None: ...

        else:

            async def body(ctx: xjobs.AsyncContext, n: int) -> None: ...

        handle = declare(body, key="{n}")
        assert handle.takes_context
        assert list(handle.codec.parameters) == ["n"]
        assert handle.call(n=1).values == {"n": 1}


class TestCall:
    def test_a_call_is_bound_and_shows_itself(self) -> None:
        call = declare(work).call(3)
        assert repr(call) == "work(n=3, name='x')"
        assert call.input_json == '{"n":3,"name":"x"}'

    def test_equal_calls_are_equal(self) -> None:
        handle = declare(work)
        assert handle.call(1) == handle.call(n=1, name="x")
        assert handle.call(1) != handle.call(2)
        assert handle.call(1) != handle.using(queue="q").call(1)


class TestUsing:
    def test_it_answers_another_handle(self) -> None:
        handle = declare(work)
        configured = handle.using(delay=3, queue="q", id=str(ID), on_conflict="error")
        options = configured.call(1).options
        assert options == EnqueueOptions(delay=timedelta(seconds=3), queue="q", id=ID, on_conflict="error")
        assert handle.call(1).options == EnqueueOptions()
        assert configured.name == handle.name
        assert registry.find("work") is handle

    def test_options_of_a_chain_add_up_and_the_last_word_counts(self) -> None:
        first = declare(work).using(delay=1)
        second = first.using(queue="x", tenant="t").using(tenant="u")
        assert second.call(1).options == EnqueueOptions(delay=timedelta(seconds=1), queue="x", tenant="u")
        assert first.call(1).options == EnqueueOptions(delay=timedelta(seconds=1))
        assert second.using().call(1).options == second.call(1).options

    def test_run_at_and_delay_replace_each_other_in_a_chain(self) -> None:
        at = datetime(2024, 1, 1, tzinfo=UTC)
        handle = declare(work).using(queue="x")
        assert handle.using(delay=1).using(run_at=at).call(1).options == EnqueueOptions(run_at=at, queue="x")
        assert handle.using(run_at=at).using(delay=0).call(1).options == EnqueueOptions(delay=timedelta(0), queue="x")

    @pytest.mark.parametrize(
        "options",
        [
            {"run_at": datetime(2024, 1, 1)},  # noqa: DTZ001
            {"run_at": "2024-01-01"},
            {"run_at": datetime(2024, 1, 1, tzinfo=UTC), "delay": 1},
            {"delay": float("nan")},
            {"delay": "1h"},
            {"delay": timedelta(days=40_000)},
            {"queue": ""},
            {"queue": "x" * 256},
            {"key": ""},
            {"key": "x" * 2_001},
            {"key": 7},
            {"tenant": ""},
            {"tenant": "a\0"},
            {"on_conflict": "ignore"},
            {"id": "ABC"},
            {"run_id": "abc"},
            {"enqueued_by": ""},
            {"traceparent": "\ud800"},
        ],
    )
    def test_an_option_that_cannot_be_is_refused_by_name(self, options: dict[str, Any]) -> None:
        with pytest.raises(xjobs.Invariant) as caught:
            declare(work).using(**options)
        assert list(options)[-1] in str(caught.value)


class TestKey:
    @pytest.mark.parametrize(
        ("key", "expected"),
        [
            ("w:{n}", "w:7"),
            ("{n:03d}/{name!r}", "007/'x'"),
            ("{{n}}{n}", "{n}7"),
            (lambda n: str(n), "7"),
            (lambda name, n: name + str(n), "x7"),
            (lambda **values: ",".join(values), "n,name"),
            (lambda n, other="o": f"{n}{other}", "7o"),
            (lambda *args, **values: "-".join(values), "n-name"),
            ("{n:{n}}", "      7"),
            ("{n!r:>3}", "  7"),
            ("{n.__class__.__name__}", "int"),
        ],
    )
    def test_it_is_made_of_the_input(self, key: Any, expected: str) -> None:
        handle = declare(work, key=key)
        assert handle.key_of(handle.call(7), ID) == expected

    def test_a_key_may_read_fields_of_a_parameter(self) -> None:
        def ship(at: datetime, tags: dict[str, str]) -> None: ...

        handle = declare(ship, key="{at:%Y-%m}/{at.day}/{tags[a]}")
        call = handle.call(at=datetime(2024, 2, 29, tzinfo=UTC), tags={"a": "b"})
        assert handle.key_of(call, ID) == "2024-02/29/b"

    def test_a_key_that_is_given_wins(self) -> None:
        handle = declare(work, key="{n}").using(key="mine")
        assert handle.key_of(handle.call(7), ID) == "mine"

    def test_without_a_key_it_is_the_id(self) -> None:
        handle = declare(work)
        assert handle.key_of(handle.call(7), ID) == str(ID)
        assert repr(xjobs.NO_KEY) == "xjobs.NO_KEY"

    @pytest.mark.parametrize("answer", ["", None, 7, b"k", "a\0", "x" * 2_001])
    def test_an_answer_that_is_no_key_is_refused_at_the_call(self, answer: Any) -> None:
        handle = declare(work, key=lambda n: answer)
        with pytest.raises(xjobs.Invariant, match="job 'work': its key") as caught:
            handle.key_of(handle.call(7), ID)
        assert caught.value.code == "X_INVARIANT"


RAISING = {
    "no item": ("{value[id]}", {"a": 1}, "'{value[id]}' raised KeyError: 'id'"),
    "no place": ("{value[3]}", [1], "'{value[3]}' raised IndexError"),
    "no attribute": ("{value.x}", {"x": 1}, "'{value.x}' raised AttributeError"),
    "attribute of nothing": ("{value.x}", None, "'{value.x}' raised AttributeError"),
    "no such format": ("{value:%Q}", 7, "'{value:%Q}' raised ValueError"),
    "format of another type": ("{value:d}", "x", "'{value:d}' raised ValueError"),
    "a function": (lambda value: str(1 // value), 0, "raised ZeroDivisionError"),
}


@pytest.mark.parametrize("name", RAISING)
@pytest.mark.parametrize("what", ["key", "tenant", "concurrency_limit"])
def test_a_rule_that_cannot_take_an_input_is_refused_with_the_job_and_the_rule(what: str, name: str) -> None:
    rule, value, text = RAISING[name]

    def work(value: Any) -> None: ...

    handle = declare(work, **{what: xjobs.Limit(1, key=rule) if what == "concurrency_limit" else rule})
    kind = xjobs.DeclarationInvalid if what == "concurrency_limit" else xjobs.Invariant
    with pytest.raises(kind) as caught:
        call = handle.call(value)
        handle.key_of(call, ID)
        handle.tenant_of(call)
    assert caught.value.fact.startswith(f"job 'work': its {what}")
    assert text in caught.value.fact
    assert caught.value.__cause__ is not None


class TestNamesOfParameters:
    """Any name that Python allows is one of a parameter."""

    NAMES = (
        *("_", "__", "___", "_x", "__x", "__x__", "__struct_config__", "__rich_repr__", "__post_init__", "__eq__"),
        *("__match_args__", "__dict__", "__weakref__", "__class__", "__init__", "__slots__", "__struct_fields__"),
        *("self", "cls", "args", "kwargs", "name", "key", "values", "p0", "p1", "größe"),
    )

    @pytest.mark.parametrize("name", NAMES)
    def test_it_is_stored_and_received_under_its_name(self, name: str) -> None:
        made: dict[str, Any] = {}
        exec(f"def body({name}: UUID, other: int = 3): return {name}, other", {"UUID": UUID}, made)
        handle = declare(made["body"], key=f"{{{name}}}")
        for call in (handle.call(ID), handle.call(ID, 3), handle.call(**{name: ID})):
            assert call.values == {name: ID, "other": 3}
            assert handle.codec.decode({name: str(ID)}) == call.values
            assert handle.key_of(call, ID) == str(ID)
        assert handle(**{name: ID}) == (ID, 3)
        with pytest.raises(xjobs.InputInvalid) as caught:
            handle.call(**{name: "x"})
        assert caught.value.path == f"input.{name}"


class TestTenant:
    @pytest.mark.parametrize(
        ("tenant", "expected"), [(None, None), ("all", "all"), ("org-{n}", "org-7"), (lambda name: name, "x")]
    )
    def test_it_is_made_of_the_input(self, tenant: Any, expected: str | None) -> None:
        handle = declare(work, tenant=tenant)
        assert handle.tenant_of(handle.call(7)) == expected
        given = handle.using(tenant="given")
        assert given.tenant_of(given.call(7)) == "given"

    @pytest.mark.parametrize("answer", ["", None, 3])
    def test_an_answer_that_is_no_tenant_is_refused_at_the_call(self, answer: Any) -> None:
        handle = declare(work, tenant=lambda n: answer)
        with pytest.raises(xjobs.Invariant, match="job 'work': its tenant"):
            handle.tenant_of(handle.call(7))


async def _async_key(n: int) -> str:
    return str(n)


def _generator(n: int) -> Iterator[int]:
    yield n


async def _async_generator(n: int) -> Any:
    yield n


def _star(*numbers: int) -> None: ...


def _double_star(**numbers: int) -> None: ...


def _positional_only(n: int, /) -> None: ...


def _wrong_context(ctx: xjobs.AsyncContext, n: int) -> None: ...


async def _wrong_async_context(ctx: xjobs.Context, n: int) -> None: ...


def _late_context(n: int, ctx: xjobs.Context) -> None: ...


def _unresolved(n: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


INVALID, NO_KEY_GIVEN, TENANT = "X_JOB_DECLARATION_INVALID", "X_IDEMPOTENCY_REQUIRED", "X_JOB_TENANT_REQUIRED"
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no key": (work, {"key": None}, NO_KEY_GIVEN),
    "key without a parameter": (work, {"key": "always"}, INVALID),
    "empty key": (work, {"key": ""}, INVALID),
    "key of an unknown parameter": (work, {"key": "{m}"}, INVALID),
    "key by position": (work, {"key": "{}"}, INVALID),
    "key that does not parse": (work, {"key": "{n"}, INVALID),
    "key function of an unknown parameter": (work, {"key": lambda m: "x"}, INVALID),
    "key of another type": (work, {"key": 7}, INVALID),
    "key with a format by an unknown parameter": (work, {"key": "{n:{w}}"}, INVALID),
    "key with an unknown conversion": (work, {"key": "{n!q}"}, INVALID),
    "key with an empty attribute": (work, {"key": "{n.}"}, INVALID),
    "key with an open item": (work, {"key": "{n[}"}, INVALID),
    "key function of a position": (work, {"key": lambda n, /: str(n)}, INVALID),
    "key function of any positions": (work, {"key": lambda *n: str(n)}, INVALID),
    "key function without a signature": (work, {"key": str}, INVALID),
    "key function that is async": (work, {"key": _async_key}, INVALID),
    "tenant with a format by an unknown parameter": (work, {"tenant": "{n:{w}}"}, INVALID),
    "tenant function of a position": (work, {"tenant": lambda n, /: str(n)}, INVALID),
    "tenant function without a signature": (work, {"tenant": str}, INVALID),
    "limit with a format by an unknown parameter": (
        work,
        {"concurrency_limit": xjobs.Limit(1, key="{n:{w}}")},
        INVALID,
    ),
    "limit function of a position": (work, {"concurrency_limit": xjobs.Limit(1, key=lambda n, /: "a")}, INVALID),
    "limit function without a signature": (work, {"concurrency_limit": xjobs.Limit(1, key=str)}, INVALID),
    "tenant of another type": (work, {"tenant": 7}, TENANT),
    "tenant of an unknown parameter": (work, {"tenant": "{m}"}, INVALID),
    "empty tenant": (work, {"tenant": ""}, INVALID),
    "no attempts": (work, {"retry": 0}, INVALID),
    "retry of another type": (work, {"retry": "5"}, INVALID),
    "empty name": (work, {"name": ""}, INVALID),
    "long name": (work, {"name": "x" * 256}, INVALID),
    "name of another type": (work, {"name": 7}, INVALID),
    "empty queue": (work, {"queue": ""}, INVALID),
    "queue of another type": (work, {"queue": None}, INVALID),
    "a class": (UUID, {}, INVALID),
    "a builtin": (len, {}, INVALID),
    "a text": ("work", {}, INVALID),
    "a generator": (_generator, {}, INVALID),
    "an async generator": (_async_generator, {}, INVALID),
    "positional parameters": (_star, {}, INVALID),
    "keyword parameters": (_double_star, {}, INVALID),
    "positional-only parameters": (_positional_only, {}, INVALID),
    "the context of the other colour": (_wrong_context, {}, INVALID),
    "the context of the other colour, async": (_wrong_async_context, {}, INVALID),
    "a context that is not first": (_late_context, {}, INVALID),
    "an annotation that is nowhere": (_unresolved, {}, INVALID),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_declaration_that_cannot_be_is_refused_with_its_code(name: str) -> None:
    body, options, code = REFUSED[name]
    with pytest.raises(xjobs.DeclarationInvalid) as caught:
        declare(body, **options)
    assert caught.value.code == code
    assert registry.registered_jobs() == []


def test_a_handle_is_no_body() -> None:
    with pytest.raises(xjobs.DeclarationInvalid):
        declare(declare(work))


def test_the_decorator_without_parentheses() -> None:
    def body(n: int) -> None: ...

    with pytest.raises(xjobs.DeclarationInvalid, match=r"job\(\) was given <function .*body.*with the parentheses"):
        xjobs.job(body)  # type: ignore[arg-type]
