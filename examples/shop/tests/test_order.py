"""Jobs that queue jobs: one payment sets off the invoice, the parcel and the warehouse."""

from __future__ import annotations

from uuid import UUID

from pytest_xjobs import XjobsQueue

from shop.carrier import Parcel
from shop.database import Session
from shop.jobs import charge_card, deliver, order_confirmed, send_invoice, take_from_stock, welcome_email
from shop.mailer import Mail
from shop.models import Product
from shopper import Shopper


def test_a_payment_sets_everything_off(
    shopper: Shopper, xjobs_queue: XjobsQueue, outbox: list[Mail], parcels: dict[UUID, Parcel]
) -> None:
    order = shopper.order(tea=2, mug=1)
    shopper.pay(order)
    report = xjobs_queue.drain()

    assert [run.job for run in report.runs] == [
        welcome_email,
        charge_card,
        order_confirmed,
        send_invoice,
        deliver,  # an async def job, in a test that is not; it waits now
        take_from_stock,
        take_from_stock,
    ]
    assert outbox[-1] == Mail("ada@example.com", "Your invoice over 21.00 EUR")
    assert list(parcels.values()) == [Parcel(order, "ada@example.com")]
    with Session() as session:
        assert session.get_one(Product, "tea").stock == 8
        assert session.get_one(Product, "mug").stock == 4


def test_every_line_is_taken_by_a_job_of_its_own(shopper: Shopper, xjobs_queue: XjobsQueue) -> None:
    order = shopper.order(tea=2, mug=1)
    xjobs_queue.drain()

    order_confirmed.enqueue(order)
    xjobs_queue.run_next()

    xjobs_queue.assert_enqueued(send_invoice.call(order), queue="mail")
    rows = xjobs_queue.assert_enqueued(take_from_stock, queue="warehouse", count=2)

    take_from_stock.enqueue(**rows[0].input)  # deduplicated: that job is live
    xjobs_queue.assert_enqueued(take_from_stock, count=2)


def test_a_line_that_comes_twice_is_taken_once(shopper: Shopper, xjobs_queue: XjobsQueue) -> None:
    shopper.pay(shopper.order(tea=2))
    report = xjobs_queue.drain()

    done = xjobs_queue.assert_state(report.runs[-1], "done")
    take_from_stock.enqueue(**done.input)  # a new job: the first one has finished
    xjobs_queue.drain()

    with Session() as session:
        assert session.get_one(Product, "tea").stock == 8
