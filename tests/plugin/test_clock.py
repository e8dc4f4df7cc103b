"""The test's clock in Python: moves, the test's own freezes, and what must keep real time."""
# What naive and local calls show is part of this.
# ruff: noqa: DTZ001, DTZ005, DTZ011

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime as dt
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import freezegun
import pytest
import time_machine as tm
from freezegun import api

from pytest_xjobs.clock import Clock, ClockState
from pytest_xjobs.freezes import REAL, real_now
from xjobs.errors import Invariant

FAR = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
DAY = timedelta(days=1)
A = datetime(2040, 1, 1, tzinfo=UTC)
B = datetime(2050, 1, 1, tzinfo=UTC)
# Taken before any freeze, so that tests can tell what is real.
REAL_FUNCTIONS = (time.time, time.time_ns, time.monotonic, time.perf_counter, time.gmtime, dt.datetime, dt.date)


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    yield clock
    clock.close()


@pytest.fixture(autouse=True)
def python_is_left_as_found() -> Iterator[None]:
    yield
    assert not api.freeze_factories
    assert not api.ignore_lists
    assert not api.tick_flags
    assert not api.tz_offsets
    assert not tm.traveller_stack
    assert (time.time, time.time_ns, time.monotonic, time.perf_counter, time.gmtime, dt.datetime, dt.date) == (
        REAL_FUNCTIONS
    )
    assert datetime is REAL_FUNCTIONS[5]
    assert date is REAL_FUNCTIONS[6]
    assert real_now() - datetime.now(UTC) < timedelta(seconds=1)


def near(one: datetime, other: datetime) -> bool:
    return abs(one - other) < timedelta(seconds=5)


def python_now() -> datetime:
    assert abs(time.time() - datetime.now(UTC).timestamp()) < 0.001
    assert abs(time.time_ns() / 1e9 - time.time()) < 0.001
    return datetime.now(UTC)


class Heard(list[ClockState]):
    def __call__(self, state: ClockState) -> None:
        self.append(state)


# Moves ---------------------------------------------------------------------------------------------------------------


def test_time_is_real_until_moved(clock: Clock) -> None:
    before = datetime.now(UTC)
    assert before <= clock.now <= datetime.now(UTC)
    assert clock.now.tzinfo is UTC
    assert clock.state == REAL
    assert not api.freeze_factories


def test_freeze_stops_at_the_present_instant(clock: Clock) -> None:
    before = datetime.now(UTC)
    instant = clock.freeze()
    assert near(before, instant)
    assert clock.now == instant == python_now()
    assert clock.state == ClockState.frozen(instant)
    assert clock.freeze() == instant


def test_freeze_at_an_instant(clock: Clock) -> None:
    assert clock.freeze(FAR) == FAR
    assert clock.now == python_now() == FAR
    assert date.today() == FAR.date()
    assert type(clock.now) is REAL_FUNCTIONS[5]


@pytest.mark.parametrize("days", [400, -4000])
def test_move_to_goes_either_way(clock: Clock, days: int) -> None:
    clock.freeze(FAR)
    target = FAR + timedelta(days=days)
    assert clock.move_to(target) == target
    assert clock.now == python_now() == target


def test_a_move_of_an_unfrozen_clock_freezes_it(clock: Clock) -> None:
    before = clock.now
    assert near(clock.advance(days=30), before + 30 * DAY)
    assert clock.now == clock.now == python_now()


def test_move_to_answers_utc(clock: Clock) -> None:
    there = FAR.astimezone(timezone(timedelta(hours=5)))
    assert clock.move_to(there) == FAR
    assert clock.now.tzinfo is UTC


def test_the_hour_that_comes_twice_is_two_hours(clock: Clock) -> None:
    first = datetime(2030, 11, 3, 1, 30, tzinfo=ZoneInfo("America/New_York"))
    assert clock.move_to(first) == datetime(2030, 11, 3, 5, 30, tzinfo=UTC)
    assert clock.move_to(first.replace(fold=1)) == datetime(2030, 11, 3, 6, 30, tzinfo=UTC)


@pytest.mark.parametrize("start", ["real", "frozen"])
def test_advances_add_up(clock: Clock, start: str) -> None:
    x, y = timedelta(days=3, microseconds=7), timedelta(hours=5)
    first = clock.freeze(FAR) if start == "frozen" else clock.freeze()
    clock.advance(x)
    clock.advance(y)
    assert clock.now == first + x + y


@pytest.mark.parametrize(
    ("delta", "units", "span"),
    [
        (90, {}, timedelta(seconds=90)),
        (0.25, {}, timedelta(milliseconds=250)),
        (0, {}, timedelta()),
        (DAY, {}, DAY),
        (None, {"days": 1, "hours": 2}, timedelta(hours=26)),
        (None, {"weeks": 1, "minutes": -1}, timedelta(minutes=7 * 24 * 60 - 1)),
    ],
)
def test_advance_takes_spans(clock: Clock, delta: Any, units: Any, span: timedelta) -> None:
    clock.freeze(FAR)
    assert clock.advance(delta, **units) == FAR + span


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda clock: clock.move_to(datetime(2030, 1, 1)),
            "datetime.datetime(2030, 1, 1, 0, 0) has no time zone: give",
        ),
        (lambda clock: clock.freeze(datetime(2030, 1, 1)), "no time zone"),
        (lambda clock: clock.move_to("2030-01-01"), "'2030-01-01' is no datetime"),
        (lambda clock: clock.advance(), "takes one span"),
        (lambda clock: clock.advance(1, days=1), "takes one span, not 1 and {'days': 1}"),
        (lambda clock: clock.advance(float("nan")), "seconds=nan is no span of time: give a finite number"),
        (lambda clock: clock.advance(days=float("inf")), "days=inf is no span"),
        (lambda clock: clock.advance(-1), "is negative: go backwards by move_to"),
        (lambda clock: clock.advance(days=-1), "is negative"),
        (lambda clock: clock.advance(fortnights=1), "fortnights"),
        (lambda clock: clock.advance("1 day"), "'1 day' is no span"),
        (lambda clock: clock.advance(days=10**12), "is no span"),
        (lambda clock: clock.advance(days=365 * 8100), "after the year 9999"),
    ],
)
def test_wrong_arguments_are_refused_and_change_nothing(clock: Clock, call: Any, text: str) -> None:
    with pytest.raises(Invariant) as caught:
        call(clock)
    assert text in str(caught.value)
    assert clock.state == REAL


def test_resume_goes_back_to_real_time(clock: Clock) -> None:
    clock.move_to(FAR)
    clock.resume()
    assert near(clock.now, real_now())
    assert near(python_now(), real_now())
    assert not api.freeze_factories
    clock.resume()
    assert clock.move_to(A) == python_now()


def test_close_may_be_called_again_and_ends_moves(clock: Clock) -> None:
    heard = Heard()
    clock.subscribe(heard)
    clock.move_to(FAR)
    clock.close()
    clock.close()
    assert heard == [ClockState.frozen(FAR), REAL]
    assert near(clock.now, real_now())
    with pytest.raises(Invariant, match="closed: its test is over"):
        clock.freeze()


def test_a_given_source_of_real_time_is_used() -> None:
    clock = Clock(real=lambda: A)
    assert clock.now == A
    assert clock.advance(days=1) == A + DAY
    clock.close()


def test_moves_do_not_start_freezegun_again(clock: Clock) -> None:
    clock.freeze(FAR)
    factory = api.freeze_factories[-1]
    clock.advance(days=1)
    assert api.freeze_factories == [factory]


# States --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        REAL,
        ClockState.frozen(datetime(1, 1, 1, tzinfo=UTC)),
        ClockState.frozen(datetime(1970, 1, 1, tzinfo=UTC)),
        ClockState.frozen(datetime.max.replace(tzinfo=UTC)),
        ClockState.frozen(FAR),
        ClockState.shifted(timedelta(microseconds=1)),
        ClockState.shifted(-timedelta(microseconds=1)),
        ClockState.shifted(timedelta(days=-9999 * 365)),
        ClockState.shifted(timedelta(days=9999 * 365)),
    ],
)
def test_a_state_is_one_bigint(state: ClockState) -> None:
    number = state.encode()
    assert -(2**63) <= number < 2**63
    assert (number == 0) == (state == REAL)
    assert ClockState.decode(number) == state
    assert pickle.loads(pickle.dumps(state)) == state


def test_a_state_gives_its_instant() -> None:
    assert REAL.instant(A) == A
    assert ClockState.frozen(FAR).instant(A) == FAR
    assert ClockState.shifted(-DAY).instant(A) == A - DAY


# Subscribers ---------------------------------------------------------------------------------------------------------


def test_subscribers_hear_each_change_once(clock: Clock) -> None:
    heard = Heard()
    stop = clock.subscribe(heard)
    clock.sync()
    assert heard == []
    clock.move_to(FAR)
    clock.move_to(FAR)
    clock.sync()
    clock.advance(days=1)
    clock.resume()
    assert heard == [ClockState.frozen(FAR), ClockState.frozen(FAR + DAY), REAL]
    stop()
    stop()
    clock.move_to(FAR)
    assert len(heard) == 3


def test_a_late_subscriber_hears_the_present_state(clock: Clock) -> None:
    heard = Heard()
    clock.move_to(FAR)
    clock.subscribe(heard)
    assert heard == [ClockState.frozen(FAR)]


def test_a_subscriber_may_ask_for_the_time(clock: Clock) -> None:
    seen: list[datetime] = []
    clock.subscribe(lambda state: seen.append(clock.now))
    clock.move_to(FAR)
    assert seen == [FAR]


def test_an_error_of_a_subscriber_reaches_the_mover_and_is_tried_again(clock: Clock) -> None:
    answers = iter([OSError("gone"), None, None])
    heard = Heard()

    def fail_once(state: ClockState) -> None:
        if error := next(answers):
            raise error

    clock.subscribe(fail_once)
    clock.subscribe(heard)
    with pytest.raises(OSError, match="gone"):
        clock.move_to(FAR)
    assert heard == []
    clock.sync()
    assert heard == [ClockState.frozen(FAR)]


def test_another_thread_passes_sync_only_when_all_know(clock: Clock) -> None:
    telling, told = threading.Event(), threading.Event()
    order: list[str] = []

    def listener(state: ClockState) -> None:
        telling.set()
        told.wait(0.005)  # the other thread would pass meanwhile
        order.append("told")

    def other() -> None:
        telling.wait(5)
        clock.sync()
        order.append("passed")

    clock.subscribe(listener)
    thread = threading.Thread(target=other)
    thread.start()
    clock.move_to(FAR)
    thread.join(5)
    told.set()
    assert order == ["told", "passed"]


# The test's own freezes ----------------------------------------------------------------------------------------------


def test_freezegun_is_followed(clock: Clock) -> None:
    heard = Heard()
    clock.subscribe(heard)
    with freezegun.freeze_time(FAR) as freezer:
        assert clock.now == FAR
        freezer.tick(60)
        clock.sync()
        freezer.move_to(A)
        assert clock.now == A
        assert type(clock.now) is REAL_FUNCTIONS[5]
    assert near(clock.now, real_now())
    assert heard == [ClockState.frozen(t) for t in (FAR, FAR + timedelta(minutes=1), A)] + [REAL]


def test_a_ticking_freezegun_is_followed(clock: Clock) -> None:
    heard = Heard()
    clock.subscribe(heard)
    with freezegun.freeze_time(FAR, tick=True) as freezer:
        clock.sync()
        clock.sync()
        assert len(heard) == 1
        assert abs(datetime.now(UTC) - clock.now) < timedelta(milliseconds=50)
        freezer.move_to(A)
        assert near(clock.now, A)
    clock.sync()
    assert [state.mode for state in heard] == ["shifted", "shifted", "real"]


def test_an_auto_ticking_freezegun_is_followed_without_being_ticked(clock: Clock) -> None:
    with freezegun.freeze_time(FAR, auto_tick_seconds=10):
        assert clock.now == clock.now == FAR
        assert datetime.now(UTC) == FAR
        assert clock.now == FAR + timedelta(seconds=10)
        clock.move_to(A)
        clock.move_to(A)
        assert clock.now == A


def test_pytest_freezer_is_followed(clock: Clock, freezer: Any) -> None:
    freezer.move_to("2044-01-02")
    assert clock.now == datetime(2044, 1, 2, tzinfo=UTC)
    clock.advance(days=1)
    assert python_now() == clock.now == datetime(2044, 1, 3, tzinfo=UTC)
    freezer.tick(timedelta(days=1))
    assert clock.now == datetime(2044, 1, 4, tzinfo=UTC)


def test_an_offset_of_the_local_time_changes_no_instant(clock: Clock) -> None:
    with freezegun.freeze_time("2044-01-02", tz_offset=5):
        assert clock.now == datetime(2044, 1, 2, tzinfo=UTC)
        clock.advance(hours=1)
        assert clock.now == datetime(2044, 1, 2, 1, tzinfo=UTC)
        assert datetime.now() == datetime(2044, 1, 2, 6)


@freezegun.freeze_time("2044-01-02")
def test_a_decorated_test_is_followed() -> None:
    clock = Clock()
    assert clock.now == datetime(2044, 1, 2, tzinfo=UTC)
    clock.advance(days=1)
    assert python_now() == datetime(2044, 1, 3, tzinfo=UTC)
    clock.close()
    assert python_now() == datetime(2044, 1, 2, tzinfo=UTC)


def test_time_machine_is_followed(clock: Clock) -> None:
    heard = Heard()
    clock.subscribe(heard)
    with tm.travel(FAR, tick=False) as traveller:
        assert clock.now == FAR == datetime.now(UTC)
        traveller.shift(60)
        clock.sync()
        traveller.move_to(A)
        assert clock.now == A
        assert real_now() < FAR
    assert near(clock.now, real_now())
    assert heard == [ClockState.frozen(t) for t in (FAR, FAR + timedelta(minutes=1), A)] + [REAL]


def test_a_ticking_time_machine_is_followed(clock: Clock) -> None:
    heard = Heard()
    clock.subscribe(heard)
    with tm.travel(FAR) as traveller:
        clock.sync()
        clock.sync()
        assert len(heard) == 1
        assert abs(datetime.now(UTC) - clock.now) < timedelta(milliseconds=50)
        traveller.shift(DAY)
        assert near(clock.now, FAR + DAY)
        traveller.move_to(A)
        assert near(clock.now, A)
    clock.sync()
    assert [state.mode for state in heard] == ["shifted", "shifted", "shifted", "real"]


def test_the_time_machine_fixture_is_followed(clock: Clock, time_machine: Any) -> None:
    assert near(clock.now, real_now())
    time_machine.move_to(FAR, tick=False)
    assert clock.now == FAR
    clock.advance(days=1)
    assert clock.now == datetime.now(UTC) == FAR + DAY


# Whose time it is: the innermost freeze, which the clock moves -------------------------------------------------------


@pytest.mark.parametrize("tick", [False, True])
@pytest.mark.parametrize("library", ["freezegun", "time-machine"])
def test_a_move_inside_a_freeze_moves_it_and_ends_with_it(clock: Clock, library: str, tick: bool) -> None:
    freeze = freezegun.freeze_time(A, tick=tick) if library == "freezegun" else tm.travel(A, tick=tick)
    with freeze:
        clock.move_to(FAR)
        assert clock.now == datetime.now(UTC) == FAR
        assert clock.advance(days=1) == datetime.now(UTC) == FAR + DAY
        assert clock.state.mode == "frozen"
    assert clock.state == REAL


@pytest.mark.parametrize("tick", [False, True])
@pytest.mark.parametrize("library", ["freezegun", "time-machine"])
@pytest.mark.parametrize("end", [Clock.resume, Clock.close])
def test_resume_puts_the_tests_freeze_back(clock: Clock, library: str, tick: bool, end: Any) -> None:
    freeze = freezegun.freeze_time(A, tick=tick) if library == "freezegun" else tm.travel(A, tick=tick)
    with freeze:
        clock.advance(days=1)
        clock.move_to(FAR)
        end(clock)
        first = datetime.now(UTC)
        assert near(clock.now, A)
        assert near(first, A)
        assert (first == datetime.now(UTC)) is not tick
        assert clock.state.mode == ("shifted" if tick else "frozen")


@pytest.mark.parametrize("tick", [False, True])
@pytest.mark.parametrize("library", ["freezegun", "time-machine"])
def test_the_test_moves_its_freeze_after_the_clock_did(clock: Clock, library: str, tick: bool) -> None:
    freeze = freezegun.freeze_time(A, tick=tick) if library == "freezegun" else tm.travel(A, tick=tick)
    with freeze as handle:
        clock.move_to(FAR)
        handle.move_to(B)
        assert near(clock.now, B)
        assert near(datetime.now(UTC), B)
        clock.move_to(FAR)
        assert clock.now == datetime.now(UTC) == FAR
        handle.move_to(B)
        clock.resume()
        assert near(clock.now, B)
        assert near(datetime.now(UTC), B)


def test_a_freeze_inside_the_clocks_own_hides_it_until_it_ends(clock: Clock) -> None:
    heard = Heard()
    clock.subscribe(heard)
    clock.freeze(FAR)
    with freezegun.freeze_time(A):
        assert clock.now == python_now() == A
        with freezegun.freeze_time(B):
            assert clock.advance(days=1) == python_now() == B + DAY
        assert clock.now == python_now() == A
    assert clock.now == python_now() == FAR
    assert heard == [ClockState.frozen(t) for t in (FAR, A, B, B + DAY, A, FAR)]


def test_resume_inside_a_freeze_that_the_test_opened_later(clock: Clock) -> None:
    clock.freeze(FAR)
    with freezegun.freeze_time(A):
        clock.resume()
        assert clock.now == python_now() == A
    assert near(python_now(), real_now())
    assert abs(time.monotonic() - REAL_FUNCTIONS[2]()) < 5
    assert clock.state == REAL
    assert not api.freeze_factories


def test_a_new_move_after_resume_inside_a_freeze(clock: Clock) -> None:
    clock.freeze(FAR)
    with freezegun.freeze_time(A):
        clock.resume()
    assert clock.move_to(B) == python_now()


def test_a_freeze_left_open_is_warned_about_and_can_still_end(clock: Clock) -> None:
    clock.freeze(FAR)
    freezer = freezegun.freeze_time(A)
    freezer.start()
    with pytest.warns(UserWarning, match="still active: stop it before the test ends"):
        clock.close()
    assert python_now() == A
    freezer.stop()
    assert near(python_now(), real_now())
    # The next test's clock takes freezegun's patches out.
    Clock().sync()
    assert not api.freeze_factories


def test_a_freeze_that_began_first_and_ends_first(clock: Clock) -> None:
    freezer = freezegun.freeze_time(A)
    freezer.start()
    clock.advance(days=1)
    freezer.stop()
    assert near(clock.now, real_now())
    assert clock.freeze(FAR) == python_now()


def test_one_stop_too_many_is_repaired(clock: Clock) -> None:
    freezer = freezegun.freeze_time(A)
    with freezer:
        pass
    clock.freeze(FAR)
    freezer.stop()  # takes the clock's freeze off freezegun's stack
    assert clock.state == REAL
    assert clock.move_to(B) == python_now()


def test_modules_first_imported_while_frozen_are_restored(clock: Clock, tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "late_module.py").write_text("from datetime import datetime\nfrom time import time\n")
    monkeypatch.syspath_prepend(tmp_path)
    clock.freeze(FAR)
    import late_module  # type: ignore[import-not-found]

    assert late_module.datetime.now(UTC) == FAR
    clock.close()
    assert late_module.datetime is REAL_FUNCTIONS[5]
    assert late_module.time is REAL_FUNCTIONS[0]


@pytest.mark.parametrize("name", ["queues_of_app", "gift_shop", "threading_tools", "multiprocessing_jobs"])
def test_modules_of_the_app_are_moved_whatever_their_name(
    clock: Clock, tmp_path: Any, monkeypatch: Any, name: str
) -> None:
    text = "import time\nfrom datetime import datetime, UTC\ndef look(): return datetime.now(UTC), time.time()\n"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__(name)
    clock.freeze(FAR)
    assert module.look() == (FAR, FAR.timestamp())


# What keeps real time ------------------------------------------------------------------------------------------------


def test_monotonic_clocks_go_on(clock: Clock) -> None:
    before = time.monotonic(), time.perf_counter(), time.monotonic_ns(), time.perf_counter_ns()
    clock.freeze(FAR)
    after = time.monotonic(), time.perf_counter(), time.monotonic_ns(), time.perf_counter_ns()
    assert all(0 < b - a < 60e9 for a, b in zip(before, after, strict=True))
    with freezegun.freeze_time(A):
        assert time.monotonic() < after[0] + 60


def test_freezes_of_the_test_stop_monotonic_clocks_as_ever(clock: Clock) -> None:
    clock.freeze(FAR)
    clock.resume()
    with freezegun.freeze_time(A):
        assert time.monotonic() == A.timestamp()


def test_pytest_times_the_test_in_real_time(clock: Clock) -> None:
    clock.freeze(FAR)
    from _pytest import timing

    assert near(timing.Instant().as_utc(), real_now())


def look() -> tuple[datetime, float, date]:
    return datetime.now(UTC), time.time(), date.today()


SEEN = (FAR, FAR.timestamp(), FAR.date())


def test_threads_see_the_moved_time(clock: Clock) -> None:
    clock.freeze(FAR)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(look()))
    thread.start()
    thread.join(5)
    bare = threading.Thread(target=lambda: seen.append(time.time()))
    bare.start()
    bare.join(5)
    assert seen == [SEEN, FAR.timestamp()]


def test_threads_of_pools_see_the_moved_time(clock: Clock) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as before:
        before.submit(look).result(5)
        clock.freeze(FAR)
        assert before.submit(look).result(5) == SEEN
        assert before.submit(time.time).result(5) == FAR.timestamp()
        with concurrent.futures.ThreadPoolExecutor(1) as inside:
            assert inside.submit(look).result(5) == SEEN


def test_waits_in_threads_end_by_real_time(clock: Clock) -> None:
    clock.freeze(FAR)
    condition = threading.Condition()
    never: concurrent.futures.Future[None] = concurrent.futures.Future()
    assert not threading.Event().wait(0.001)
    with condition:
        assert not condition.wait_for(lambda: False, 0.001)
    assert not threading.Semaphore(0).acquire(timeout=0.001)
    with pytest.raises(queue.Empty):
        queue.Queue().get(timeout=0.001)
    full: queue.Queue[int] = queue.Queue(1)
    full.put(1)
    with pytest.raises(queue.Full):
        full.put(1, timeout=0.001)
    with pytest.raises(concurrent.futures.TimeoutError):
        never.result(0.001)
    with pytest.raises(concurrent.futures.TimeoutError):
        next(concurrent.futures.as_completed([never], 0.001))
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, timeout=0.005, check=False)


@pytest.mark.parametrize("when", ["before", "inside"])
def test_asyncio_waits_by_real_time_and_coroutines_see_the_moved_time(clock: Clock, when: str) -> None:
    async def body() -> tuple[Any, ...]:
        if when == "inside":
            clock.freeze(FAR)
        await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        in_thread = await asyncio.to_thread(look)
        in_task = await asyncio.create_task(alook())
        return look(), in_thread, in_task

    async def alook() -> Any:
        return look()

    if when == "before":
        clock.freeze(FAR)
    assert asyncio.run(asyncio.wait_for(body(), 5)) == (SEEN, SEEN, SEEN)


def test_what_the_user_told_freezegun_to_ignore_is_ignored(clock: Clock, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        freezegun.config.settings, "default_ignore_list", [*freezegun.config.DEFAULT_IGNORE_LIST, "spared"]
    )
    spared: dict[str, Any] = {"__name__": "spared", "time": time}
    exec("def look(): return time.time()", spared)
    clock.freeze(FAR)
    assert near(datetime.fromtimestamp(spared["look"](), UTC), real_now())
    assert time.time() == FAR.timestamp()


def test_heavy_packages_are_not_imported() -> None:
    code = (
        "import sys, xjobs; before = set(sys.modules)\n"
        "from pytest_xjobs.clock import Clock; c = Clock(); c.sync(); c.now; c.close()\n"
        "heavy = {'freezegun', 'time_machine', 'psycopg', 'asyncio', 'pytest'}\n"
        "print(sorted(heavy & set(sys.modules) - before))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert out.stdout.strip() == "[]"


def test_the_clock_may_be_imported_inside_a_freeze() -> None:
    code = (
        "import freezegun, datetime as d\n"
        "with freezegun.freeze_time('2030-01-01'):\n"
        "    from pytest_xjobs.clock import Clock\n"
        "    from pytest_xjobs.freezes import real_now\n"
        "    c = Clock(); n = c.now; r = real_now()\n"
        "print(type(n) is d.datetime, n.year, r.year != 2030 and abs(r - d.datetime.now(d.UTC)).total_seconds() < 5)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert out.stdout.split() == ["True", "2030", "True"]
