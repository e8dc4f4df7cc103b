"""A run of weeks: steps that happen once, an event from the carrier, a sleep, and crashes in between."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from pytest_xjobs import XjobsClock, XjobsFaults, XjobsQueue

from shop.carrier import Parcel
from shop.jobs import deliver
from shop.mailer import Mail
from shopper import Shopper


def test_a_delivery_and_the_question_after_it(
    shopper: Shopper, xjobs_queue: XjobsQueue, xjobs_clock: XjobsClock, outbox: list[Mail]
) -> None:
    order = shopper.order(tea=2)
    shopper.pay(order)
    xjobs_queue.drain()
    xjobs_clock.advance(days=2)
    shopper.receive(order)
    report = xjobs_queue.drain(advance=True)
    assert [jump.end - jump.start for jump in report.jumps][-1] >= timedelta(days=6)
    assert outbox[-1] == Mail("ada@example.com", "How do you like it?")
    xjobs_queue.assert_ran(deliver, steps=["book", "delivered", "try it out", "ask"])


def test_a_lost_parcel_is_reported(shopper: Shopper, xjobs_queue: XjobsQueue, outbox: list[Mail]) -> None:
    order = shopper.order(tea=2)
    shopper.pay(order)
    xjobs_queue.drain(advance=True)
    assert outbox[-1] == Mail("warehouse@example.com", f"Parcel {order} is lost")


@pytest.mark.parametrize("step", ["book", "ask"])
def test_a_crash_after_a_step_does_not_repeat_it(
    shopper: Shopper,
    xjobs_queue: XjobsQueue,
    xjobs_faults: XjobsFaults,
    outbox: list[Mail],
    parcels: dict[UUID, Parcel],
    step: str,
) -> None:
    xjobs_faults.crash_at("after_step", job=deliver, step=step)
    order = shopper.order(tea=2)
    shopper.pay(order)
    xjobs_queue.drain()
    shopper.receive(order)
    xjobs_queue.drain(advance=True)
    assert list(parcels.values()) == [Parcel(order, "ada@example.com")]
    assert outbox.count(Mail("ada@example.com", "How do you like it?")) == 1
