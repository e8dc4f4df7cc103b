"""Declaring a job: `@job` turns a function into a typed handle that calls, enqueues and describes it."""

from __future__ import annotations

import inspect
import string
import typing
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    final,
    overload,
)
from uuid import UUID

from xjobs import registry
from xjobs.bridge import run_sync
from xjobs.codec import Codec
from xjobs.concurrency import Limit, as_limit, check_limit_key, slot_key
from xjobs.context import AsyncContext, Context
from xjobs.errors import DeclarationInvalid, IdempotencyRequired, Invariant, TenantRequired
from xjobs.ids import check_id, text_of
from xjobs.limits import check_duration, check_instant, check_text
from xjobs.records import Ending, Enqueued, maker
from xjobs.retry import Retry, as_retry

P = ParamSpec("P")
F = ParamSpec("F")
R = TypeVar("R")
H = TypeVar("H", bound="Callable[[Ending], Any]")
R_co = TypeVar("R_co", covariant=True)

OnConflict = Literal["dedupe", "error"]


@final
class NoKey:
    """The type of `NO_KEY`."""

    def __repr__(self) -> str:
        return "xjobs.NO_KEY"


NO_KEY: Final = NoKey()
"""As `key=`: every enqueue is a job of its own. The key column then holds the job's id."""

KeyRule = str | Callable[..., str] | NoKey
TenantRule = str | Callable[..., str] | None


@dataclass(frozen=True, slots=True)
class EnqueueOptions:
    """What one enqueue changes against the declaration; `JobHandle.using` describes each."""

    run_at: datetime | None = None
    delay: timedelta | None = None
    queue: str | None = None
    key: str | None = None
    tenant: str | None = None
    on_conflict: OnConflict = "dedupe"
    id: UUID | None = None
    run_id: UUID | None = None
    enqueued_by: str | None = None
    traceparent: str | None = None
    connection: Any = None


_NO_OPTIONS = EnqueueOptions()


class Call(NamedTuple):
    """One call of a job, checked and bound but not queued: what `handle.call(...)` answers.

    Pass it to `enqueue_many`, to a schedule, or to an assertion. Two calls are equal when job, input and options are.
    """

    job: JobHandle[Any, Any, Any]
    input_json: str
    values: dict[str, Any]
    options: EnqueueOptions

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"{self.job.name}({arguments})"


class EndingHook(NamedTuple):
    """The function that a job tells of its endings."""

    body: Callable[[Ending], Any]
    is_async: bool


_call = maker(Call)


class JobHandle(Generic[F, P, R_co]):
    """A declared job. Calling it runs the plain function; `enqueue` and `aenqueue` queue it.

    Attributes:
        name: the durable name, stored with every row of the job.
        queue: where its rows go unless an enqueue says otherwise.
        retry: its policy.
        timeout: how long one attempt may take, or None.
        step_timeout: how long one `ctx.step.run` may take, or None.
        body: the function.
        is_async: whether the body is an `async def`.
        concurrency_limit: how many of its runs there may be at a time over all workers; None when any number.
    """

    def __init__(
        self,
        body: Callable[F, R_co],
        *,
        name: str,
        key: KeyRule,
        queue: str,
        tenant: TenantRule,
        retry: Retry,
        timeout: timedelta | None = None,
        step_timeout: timedelta | None = None,
        concurrency_limit: Limit | None = None,
    ) -> None:
        self.body = body
        self.name = name
        self.queue = queue
        self.retry = retry
        self.timeout = timeout
        self.step_timeout = step_timeout
        self.is_async = inspect.iscoroutinefunction(body)
        self.declared_at = f"{body.__code__.co_filename}:{body.__code__.co_firstlineno}"
        self.__name__, self.__qualname__, self.__doc__ = body.__name__, body.__qualname__, body.__doc__
        self.__module__, self.__wrapped__ = body.__module__, body
        self._options = _NO_OPTIONS
        self._hooks: list[EndingHook] = []  # shared with the configured handles made from this one
        parameters, hints, self.takes_context = _read_signature(self)
        self.codec = Codec(name, parameters, hints)
        self._key = _rule(key, "key", self)
        self._tenant = _rule(tenant, "tenant", self)
        self.concurrency_limit = concurrency_limit
        self._limit_key = _limit_rule(concurrency_limit, self)

    def __repr__(self) -> str:
        return f"<job {self.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # By name, as functions pickle: what a report or an error holds can travel between processes.
        return registry.find, (self.name,)

    def __call__(self, /, *args: F.args, **kwargs: F.kwargs) -> R_co:
        """Run the plain function, with nothing queued."""
        return self.body(*args, **kwargs)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Queue one job on the queue in use (`xjobs.use`).

        Raises:
            InputInvalid: the input does not fit the body or is not strict JSON.
            JobDuplicate: `using(on_conflict="error")` and a live job holds the key.
            DriverUnavailable: no queue is in use, or its database does not answer.
            TransactionAborted, ConnectionUnsupported: the connection given by `using(connection=...)` cannot take it.
        """
        from xjobs.queue import enqueue_in_use

        return run_sync(enqueue_in_use(self._call(args, kwargs), "blocking"))

    def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Enqueued]:
        """Queue one job from async code; otherwise as `enqueue`. The input is checked before the first await."""
        from xjobs.queue import enqueue_in_use

        return enqueue_in_use(self._call(args, kwargs), "async")

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call:
        """The call, checked and bound, not queued.

        Raises:
            InputInvalid: as for `enqueue`.
        """
        return self._call(args, kwargs)

    def using(
        self,
        *,
        run_at: datetime | None = None,
        delay: timedelta | float | None = None,
        queue: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        on_conflict: OnConflict | None = None,
        id: UUID | str | None = None,  # noqa: A002 - the column's name
        run_id: UUID | str | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        connection: Any = None,
    ) -> JobHandle[F, P, R_co]:
        """This handle with other options for its enqueues; what is not given stays as it was on this one.

        Args:
            run_at: an aware datetime; the job is not run before it.
            delay: the same as a timedelta or seconds from now, by the clock of the queue's database.
            queue: in place of the declared queue.
            key: the idempotency key itself, in place of the declared rule.
            tenant: in place of the declared rule.
            on_conflict: `dedupe` answers the live job that holds the key, `error` raises JobDuplicate.
            id: the job's id; an id that a row holds already, even a finished one, answers that row.
            run_id: the run that the job continues.
            enqueued_by: who asked, for reading only.
            traceparent: W3C trace context of the request.
            connection: write the job on this connection, inside the caller's transaction. It is never committed or
                rolled back here.

        Raises:
            Invariant, IdInvalid: a value is out of its range; the message names it.
        """
        if run_at is not None and delay is not None:
            raise Invariant(f"both run_at={run_at!r} and delay={delay!r} are given", "give one of them")
        if on_conflict is not None and on_conflict not in typing.get_args(OnConflict):
            raise Invariant(f"on_conflict is {on_conflict!r}", "give 'dedupe' or 'error'")
        given = {
            "run_at": None if run_at is None else check_instant(run_at, "run_at"),
            "delay": None if delay is None else check_duration(delay, "delay"),
            "queue": None if queue is None else check_text(queue, "queue"),
            "key": None if key is None else check_text(key, "key"),
            "tenant": None if tenant is None else check_text(tenant, "tenant"),
            "on_conflict": on_conflict,
            "id": None if id is None else check_id(id, "id"),
            "run_id": None if run_id is None else check_id(run_id, "run_id"),
            "enqueued_by": None if enqueued_by is None else check_text(enqueued_by, "enqueued_by"),
            "traceparent": None if traceparent is None else check_text(traceparent, "traceparent"),
            "connection": connection,
        }
        changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if run_at is not None or delay is not None:
            changed = {"run_at": None, "delay": None, **changed}
        options = replace(self._options, **changed)
        configured: JobHandle[F, P, R_co] = object.__new__(type(self))
        configured.__dict__.update(self.__dict__, _options=options)
        return configured

    def on_settled(self, hook: H) -> H:
        """Have `hook` called with an `xjobs.Ending` when a run of the job has ended; use it as a decorator.

        It is called once the row says so, by the process that wrote it there, up to three times when it fails, and not
        at all when that process dies before: it tells, it does not guarantee. A retry, a suspension, a cancel and an
        operator's verb end nothing. What it raises changes nothing about the job.

        Raises:
            DeclarationInvalid: there is one already, or it is no function of one argument.
        """
        if self._hooks:
            raise DeclarationInvalid(f"job {self.name!r} has an on_settled hook already", "do both in one function")
        if not callable(hook):
            raise DeclarationInvalid(f"on_settled of job {self.name!r} is {hook!r}", "give a function of one Ending")
        try:
            inspect.signature(hook).bind(None)
        except TypeError as problem:
            raise DeclarationInvalid(
                f"on_settled hook of job {self.name!r} cannot be called with one argument: {problem}",
                "give it one parameter, the Ending",
            ) from None
        self._hooks.append(EndingHook(hook, inspect.iscoroutinefunction(hook)))
        return hook

    @property
    def ending_hook(self) -> EndingHook | None:
        """The `on_settled` hook, or None."""
        return self._hooks[0] if self._hooks else None

    def key_of(self, call: Call, job_id: UUID) -> str:
        """The idempotency key of a call: the one given, or what the declared rule makes of the input."""
        if call.options.key is not None:
            return call.options.key
        return text_of(job_id) if self._key is None else self._key(call.values)

    def tenant_of(self, call: Call) -> str | None:
        """The tenant of a call, or None."""
        if call.options.tenant is not None:
            return call.options.tenant
        return None if self._tenant is None else self._tenant(call.values)

    def slot_key(self, values: Mapping[str, Any]) -> str:
        """What the slots are stored under that a run with this input counts against.

        Raises:
            DeclarationInvalid: the limit's key rule answers no usable key for it.
        """
        make = self._limit_key
        return slot_key(self.name, None if make is None else check_limit_key(lambda: make(values), self.name))

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        input_json, values = self.codec.encode(self.codec.bind(args, kwargs))
        if self._limit_key is not None:
            self.slot_key(values)  # an input without a usable key is refused here, in the caller
        return _call((self, input_json, values, self._options))


def _read_signature(
    handle: JobHandle[Any, Any, Any],
) -> tuple[dict[str, inspect.Parameter], dict[str, Any], bool]:
    """The input parameters of a body, their resolved annotations, and whether it takes the context first."""
    try:
        hints = typing.get_type_hints(handle.body, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as problem:
        raise DeclarationInvalid(
            f"an annotation of job {handle.name!r} cannot be resolved: {problem}",
            "import or define the type at module level, above the job and not only under TYPE_CHECKING",
        ) from None
    parameters = dict(inspect.signature(handle.body).parameters)
    takes_context = False
    for position, (name, parameter) in enumerate(list(parameters.items())):
        hint = hints.get(name)
        if hint in (Context, AsyncContext):
            _check_context(handle, name, hint, position)
            del parameters[name]
            takes_context = True
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise DeclarationInvalid(
                f"parameter {str(parameter)!r} of job {handle.name!r} has no name of its own in the stored input",
                "use named parameters only",
            )
    return parameters, hints, takes_context


def _check_context(handle: JobHandle[Any, Any, Any], name: str, hint: type, position: int) -> None:
    wanted = AsyncContext if handle.is_async else Context
    if hint is not wanted:
        raise DeclarationInvalid(
            f"{'async def' if handle.is_async else 'def'} job {handle.name!r} takes {name}: {hint.__name__}",
            f"annotate it xjobs.{wanted.__name__}",
        )
    if position != 0:
        raise DeclarationInvalid(
            f"job {handle.name!r} takes its context as parameter {position + 1}", "make it the first"
        )


def _rule(
    rule: KeyRule | TenantRule, what: str, handle: JobHandle[Any, Any, Any]
) -> Callable[[Mapping[str, Any]], str] | None:
    """A key or tenant rule as one function of the input values; its parameters are checked here."""
    if rule is None or isinstance(rule, NoKey):
        return None
    make = _format_rule(rule, what, handle) if isinstance(rule, str) else _function_rule(rule, what, handle)

    def apply(values: Mapping[str, Any]) -> str:
        try:
            made = make(values)
        except Exception as problem:
            raise Invariant(*_raised(problem, rule, what, handle)) from problem
        try:
            return check_text(made, what)
        except Invariant as refused:
            raise Invariant(f"job {handle.name!r}: its {refused.fact}", refused.remedy) from None

    return apply


def _limit_rule(limit: Limit | None, handle: JobHandle[Any, Any, Any]) -> Callable[[Mapping[str, Any]], object] | None:
    """The key rule of a limit as one function of the input values; None when the job has one count, or no limit."""
    if limit is None or limit.key is None:
        return None
    rule, what = limit.key, "concurrency_limit key"
    make = _format_rule(rule, what, handle) if isinstance(rule, str) else _function_rule(rule, what, handle)

    def apply(values: Mapping[str, Any]) -> object:
        try:
            return make(values)
        except Exception as problem:
            raise DeclarationInvalid(*_raised(problem, rule, what, handle)) from problem

    return apply


def _raised(problem: Exception, rule: object, what: str, handle: JobHandle[Any, Any, Any]) -> tuple[str, str]:
    """The fact and the remedy of a rule that raised something for an input."""
    return (
        f"job {handle.name!r}: its {what} {_shown(rule)} raised {type(problem).__name__}: {problem}",
        "make it of what every input has, by a function where that takes more than a format text",
    )


def _shown(rule: object) -> str:
    return repr(rule) if isinstance(rule, str) else f"function {getattr(rule, '__qualname__', rule)}"


class _Anything:
    """A value that has every attribute and item, for trying out a format text."""

    def __getattribute__(self, name: str) -> Self:
        return self

    def __getitem__(self, key: object) -> Self:
        return self

    def __format__(self, spec: str) -> str:
        return ""


def _format_rule(text: str, what: str, handle: JobHandle[Any, Any, Any]) -> Callable[[Mapping[str, Any]], str]:
    try:
        names = _names_in(text)
        text.format_map({name: _Anything() for name in names})
    except ValueError as problem:
        raise DeclarationInvalid(
            f"{what} {text!r} of job {handle.name!r}: {problem}", "write it as a format text"
        ) from None
    _check_names(names, repr(text), what, handle)
    if not text or (what != "tenant" and not names):
        raise DeclarationInvalid(
            f"{what} {text!r} of job {handle.name!r} is the same for every input",
            'name a parameter, as in "welcome:{user_id}", or use xjobs.NO_KEY',
        )
    return text.format_map


def _names_in(text: str) -> set[str]:
    """What a format text names, also inside its format specifications."""
    names: set[str] = set()
    for _, field, spec, _ in string.Formatter().parse(text):
        if field is not None:
            names |= {field.partition(".")[0].partition("[")[0]} | _names_in(spec or "")
    return names


def _function_rule(rule: Any, what: str, handle: JobHandle[Any, Any, Any]) -> Callable[[Mapping[str, Any]], str]:
    if not callable(rule):
        kind = TenantRequired if what == "tenant" else DeclarationInvalid
        raise kind(f"{what} of job {handle.name!r} is {rule!r}", "give a format text or a function of the input")
    make = cast("Callable[..., str]", rule)
    taken = _parameters_of(make, what, handle)
    if any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        return lambda values: make(**values)
    required = {name for name, p in taken.items() if p.default is p.empty}
    _check_names(required, _shown(rule), what, handle)
    names = [name for name in taken if name in handle.codec.parameters]
    return lambda values: make(**{name: values[name] for name in names})


def _parameters_of(
    rule: Callable[..., object], what: str, handle: JobHandle[Any, Any, Any]
) -> Mapping[str, inspect.Parameter]:
    """The parameters of a rule, each of which can be given by its name."""
    named = f"{what} {_shown(rule)} of job {handle.name!r}"
    remedy = f"write it as lambda {', '.join(handle.codec.parameters) or 'values'}: ..."
    try:
        taken = inspect.signature(rule).parameters
    except (TypeError, ValueError) as problem:
        raise DeclarationInvalid(f"{named} cannot be called by names: {problem}", remedy) from None
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    for parameter in taken.values():
        if parameter.kind is parameter.POSITIONAL_ONLY or (
            parameter.kind is parameter.VAR_POSITIONAL and not takes_all
        ):
            raise DeclarationInvalid(f"{named} has the parameter {str(parameter)!r}, which has no name", remedy)
    if inspect.iscoroutinefunction(rule):
        raise DeclarationInvalid(f"{named} is an async def", "make the text in a def")
    return taken


def _check_names(names: set[str], rule: str, what: str, handle: JobHandle[Any, Any, Any]) -> None:
    unknown = sorted(names - handle.codec.parameters.keys())
    if unknown:
        known = ", ".join(handle.codec.parameters) or "none"
        raise DeclarationInvalid(
            f"{what} {rule} of job {handle.name!r} names {', '.join(map(repr, unknown))}",
            f"name parameters of the body: {known}",
        )


class _Declare(Protocol):
    """What `job(...)` answers: a decorator that keeps the function's types."""

    @overload
    def __call__(self, body: Callable[Concatenate[Context, P], R], /) -> JobHandle[Concatenate[Context, P], P, R]: ...

    @overload
    def __call__(
        self, body: Callable[Concatenate[AsyncContext, P], Coroutine[Any, Any, R]], /
    ) -> JobHandle[Concatenate[AsyncContext, P], P, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, body: Callable[P, R], /) -> JobHandle[P, P, R]: ...


def job(
    *misplaced: Never,
    key: KeyRule | None = None,
    name: str | None = None,
    queue: str = "default",
    tenant: TenantRule = None,
    retry: int | Retry | None = None,
    timeout: timedelta | float | None = None,
    step_timeout: timedelta | float | None = None,
    concurrency_limit: int | Limit | None = None,
) -> _Declare:
    """Declare the decorated function as a job.

    Args:
        key: what makes two enqueues the same work: a format text over the parameters (`"welcome:{user_id}"`), a
            function of some of them, or `xjobs.NO_KEY`. While a job with an equal key is live, an enqueue answers it.
        name: the durable name in the database; the function's name when not given. Never rename a job that has rows.
        queue: the queue its rows go to.
        tenant: a function of the input or a format text; jobs of different tenants never share a key.
        retry: a `Retry`, or a number of attempts; three attempts with exponential backoff when not given.
        timeout: how long one attempt may take, a timedelta or seconds; then it fails with JobTimeout. An `async def`
            body is cancelled; a `def` body has to ask (`ctx.cancelled`).
        step_timeout: the same for each `ctx.step.run`.
        concurrency_limit: how many runs there may be at a time over all workers: a number, or a `Limit` with a key.

    Raises:
        IdempotencyRequired: no `key`.
        TenantRequired: `tenant` is of the wrong type.
        DeclarationInvalid: another option or the function's signature cannot be used; the message names it.
        JobDuplicate: the name is taken by another function.
    """

    if misplaced:
        raise DeclarationInvalid(
            f"job() was given {misplaced[0]!r}",
            'write @job(key="...") above the function, with the parentheses and each option by its name',
        )

    def declare(body: Callable[..., Any]) -> JobHandle[Any, Any, Any]:
        body_name = getattr(body, "__name__", None)
        if not inspect.isfunction(body) or body_name is None:
            raise DeclarationInvalid(f"@job is on {body!r}", "put it on a def or async def function")
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise DeclarationInvalid(f"job {body_name!r} is a generator function", "return instead of yielding")
        if key is None:
            raise IdempotencyRequired(
                f"job {name or body_name!r} has no key",
                'say what makes two enqueues the same work, as key="welcome:{user_id}", or pass key=xjobs.NO_KEY',
            )
        try:
            durable = check_text(body_name if name is None else name, "name")
            lane = check_text(queue, "queue")
            limits = {
                what: None if value is None else check_duration(value, what, low=timedelta(microseconds=1))
                for what, value in (("timeout", timeout), ("step_timeout", step_timeout))
            }
        except Invariant as refused:
            raise DeclarationInvalid(f"job {body_name!r}: {refused.fact}", refused.remedy) from None
        handle: JobHandle[Any, Any, Any] = JobHandle(
            body,
            name=durable,
            key=key,
            queue=lane,
            tenant=tenant,
            retry=as_retry(retry),
            concurrency_limit=as_limit(concurrency_limit, durable),
            **limits,
        )
        registry.register(handle)
        return handle

    return declare
