"""Three days pass in no time."""

from __future__ import annotations

from datetime import timedelta

from pytest_xjobs import XjobsClock, XjobsQueue

from shop.jobs import payment_reminder
from shop.mailer import Mail
from shopper import Shopper

REMINDER = "Your order is waiting for its payment"


def test_an_unpaid_order_is_reminded_of_after_three_days(
    shopper: Shopper, xjobs_queue: XjobsQueue, xjobs_clock: XjobsClock, outbox: list[Mail]
) -> None:
    order = shopper.order(tea=1)
    xjobs_queue.assert_enqueued(payment_reminder.call(order), due=timedelta(days=3))
    xjobs_queue.drain()
    assert REMINDER not in [mail.subject for mail in outbox]

    xjobs_clock.advance(days=3)
    xjobs_queue.drain()
    assert outbox[-1] == Mail("ada@example.com", REMINDER)


def test_a_paid_order_is_not(
    shopper: Shopper, xjobs_queue: XjobsQueue, xjobs_clock: XjobsClock, outbox: list[Mail]
) -> None:
    shopper.pay(shopper.order(tea=1))
    xjobs_clock.advance(days=3)
    report = xjobs_queue.drain()

    assert payment_reminder in [run.job for run in report.runs]
    assert REMINDER not in [mail.subject for mail in outbox]
