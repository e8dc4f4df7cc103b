"""A gateway that fails, and work that comes twice: the card is charged once all the same."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pytest_xjobs import XjobsClock, XjobsQueue

from shop.jobs import charge_card, order_confirmed
from shop.payments import Gateway, GatewayDown
from shopper import Shopper


def test_a_payment_is_tried_again_after_an_outage(
    shopper: Shopper, gateway: Gateway, xjobs_queue: XjobsQueue, xjobs_clock: XjobsClock
) -> None:
    order = shopper.order(tea=2)
    shopper.pay(order)

    gateway.outages = 1
    with pytest.raises(GatewayDown):
        xjobs_queue.drain()
    assert gateway.charges == {}

    xjobs_clock.advance(seconds=30)
    xjobs_queue.drain()
    assert gateway.charges == {str(order): 900}


def test_the_tries_are_further_and_further_apart(
    shopper: Shopper, gateway: Gateway, xjobs_queue: XjobsQueue, xjobs_clock: XjobsClock
) -> None:
    start = xjobs_clock.freeze()
    job = shopper.pay(shopper.order(tea=2))

    gateway.outages = 4
    report = xjobs_queue.drain(until=timedelta(hours=1), errors="collect")

    tries = [run for run in report.runs if run.job is charge_card]
    assert [(run.started_at - start).total_seconds() for run in tries] == [0, 30, 90, 210]
    xjobs_queue.assert_state(job, "dead")
    xjobs_queue.assert_not_enqueued(order_confirmed)


def test_a_double_click_is_one_payment(shopper: Shopper, gateway: Gateway, xjobs_queue: XjobsQueue) -> None:
    order = shopper.order(mug=1)

    assert shopper.pay(order) == shopper.pay(order)
    xjobs_queue.assert_enqueued(charge_card.call(order), count=1)

    xjobs_queue.drain()
    assert gateway.charges == {str(order): 1200}


def test_a_click_on_a_paid_order_charges_nothing(shopper: Shopper, gateway: Gateway, xjobs_queue: XjobsQueue) -> None:
    order = shopper.order(mug=1)
    shopper.pay(order)
    xjobs_queue.drain()
    gateway.charges.clear()

    again = shopper.pay(order)
    xjobs_queue.drain()

    xjobs_queue.assert_state(again, "done")
    assert gateway.charges == {}


def test_a_worker_that_dies_after_the_charge_does_not_charge_twice(
    shopper: Shopper, gateway: Gateway, xjobs_queue: XjobsQueue, xjobs_clock: XjobsClock
) -> None:
    order = shopper.order(mug=1)
    job = shopper.pay(order)

    xjobs_queue.claim(queues=["payments"], worker_id="doomed")
    charge_card(order)  # all of the work is done, and then the worker is gone before it could say so
    gateway.charges.clear()

    xjobs_clock.advance(minutes=1)  # its lease lapses
    report = xjobs_queue.drain()

    assert [run.attempt for run in report.runs if run.job is charge_card] == [2]
    xjobs_queue.assert_state(job, "done")
    assert gateway.charges == {}
