"""What customers can do. Each request is one transaction, and the jobs that it queues are part of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import xjobs
from flask import Blueprint, request
from sqlalchemy.exc import IntegrityError

from shop.database import Session
from shop.jobs import charge_card, payment_reminder, welcome_email
from shop.models import Customer, Order, OrderLine

shop = Blueprint("shop", __name__)

Answer = tuple[dict[str, Any], int]


@shop.post("/customers")
def sign_up() -> Answer:
    email = request.get_json()["email"]
    try:
        with Session.begin() as session:
            session.add(customer := Customer(email=email))
            welcome_email.using(connection=session).enqueue(email)
    except IntegrityError:
        return {"error": "this address has an account"}, 409
    return {"customer": customer.id}, 201


@shop.post("/orders")
def place_order() -> Answer:
    wanted = request.get_json()
    lines = [OrderLine(sku=sku, quantity=quantity) for sku, quantity in wanted["lines"].items()]
    with Session.begin() as session:
        session.add(order := Order(customer_id=wanted["customer"], lines=lines))
        session.flush()  # the order gets its id
        payment_reminder.using(connection=session, delay=timedelta(days=3)).enqueue(order.id)
    return {"order": order.id}, 201


@shop.post("/orders/<uuid:order_id>/payment")
def pay(order_id: UUID) -> Answer:
    with Session.begin() as session:
        session.get_one(Order, order_id)
        queued = charge_card.using(connection=session).enqueue(order_id)
    return {"job": queued.id}, 202


@shop.post("/orders/<uuid:order_id>/delivery")
def delivered(order_id: UUID) -> Answer:
    """The carrier's webhook."""
    with Session.begin() as session:
        xjobs.publish("parcel.delivered", request.get_json(), correlation_key=str(order_id), connection=session)
    return {}, 202
