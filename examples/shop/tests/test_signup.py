"""A job queued in a transaction shares its fate."""

from __future__ import annotations

from pytest_xjobs import XjobsQueue

from shop.jobs import welcome_email
from shop.mailer import Mail
from shopper import Shopper


def test_a_new_customer_is_welcomed(shopper: Shopper, xjobs_queue: XjobsQueue, outbox: list[Mail]) -> None:
    assert shopper.sign_up().status_code == 201

    xjobs_queue.assert_enqueued(welcome_email.call(shopper.email), queue="mail")
    assert outbox == []

    xjobs_queue.drain()
    assert outbox == [Mail("ada@example.com", "Welcome to the shop")]


def test_a_sign_up_that_fails_sends_nothing(shopper: Shopper, xjobs_queue: XjobsQueue, outbox: list[Mail]) -> None:
    shopper.sign_up()
    xjobs_queue.drain()
    outbox.clear()

    # The view queues the mail before the database finds that the address is taken.
    assert shopper.sign_up().status_code == 409

    xjobs_queue.assert_not_enqueued(welcome_email)
    xjobs_queue.drain()
    assert outbox == []
