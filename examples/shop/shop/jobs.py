"""The shop's background work.

Every job may be delivered twice: a worker can die after the work and before it could say so. So each body first looks
whether its work is done, or hands the outside world a key by which it recognises the second call.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import xjobs
from xjobs import AsyncContext, Retry, job

from shop import carrier, mailer, payments
from shop.database import Session
from shop.models import Order, OrderLine, Product


@job(key="welcome:{email}", queue="mail")
def welcome_email(email: str) -> None:
    mailer.send(email, "Welcome to the shop")


@job(key="remind:{order_id}", queue="mail")
def payment_reminder(order_id: UUID) -> None:
    with Session() as session:
        order = session.get_one(Order, order_id)
        if order.paid_at is None:
            mailer.send(order.customer.email, "Your order is waiting for its payment")


@job(key="charge:{order_id}", queue="payments", retry=Retry(attempts=4, delay=30, jitter=False))
def charge_card(order_id: UUID) -> None:
    with Session.begin() as session:
        order = session.get_one(Order, order_id, with_for_update=True)
        if order.paid_at is not None:
            return
        payments.gateway.charge(order.cents, key=str(order_id))
        order.paid_at = datetime.now(UTC)
        order_confirmed.using(connection=session).enqueue(order_id)


@job(key="confirmed:{order_id}")
def order_confirmed(order_id: UUID) -> None:
    with Session.begin() as session:
        order = session.get_one(Order, order_id)
        calls = [send_invoice.call(order_id), deliver.call(order_id, order.customer.email)]
        calls += [take_from_stock.call(line.id) for line in order.lines]
        xjobs.enqueue_many(calls, connection=session)


@job(key="invoice:{order_id}", queue="mail")
def send_invoice(order_id: UUID) -> None:
    with Session() as session:
        order = session.get_one(Order, order_id)
        mailer.send(order.customer.email, f"Your invoice over {order.cents / 100:.2f} EUR")


@job(key="stock:{line_id}", queue="warehouse")
def take_from_stock(line_id: int) -> None:
    with Session.begin() as session:
        line = session.get_one(OrderLine, line_id, with_for_update=True)
        if not line.taken:
            session.get_one(Product, line.sku, with_for_update=True).stock -= line.quantity
            line.taken = True


@job(key="deliver:{order_id}", queue="warehouse", retry=8)
async def deliver(ctx: AsyncContext, order_id: UUID, email: str) -> None:
    """Weeks in one function: no process is held while it waits, and a crash goes on from the last step."""
    # The run's id stays the same through all attempts, so the carrier knows a second call.
    await ctx.step.run("book", carrier.book, ctx.run_id, order_id, email)
    delivered = await ctx.step.wait_for_event(
        "delivered", "parcel.delivered", match=str(order_id), timeout=timedelta(days=14)
    )
    if delivered is None:
        await ctx.step.run("report the loss", mailer.send, "warehouse@example.com", f"Parcel {order_id} is lost")
        return
    await ctx.step.sleep("try it out", timedelta(days=7))
    await ctx.step.run("ask", mailer.send, email, "How do you like it?")
