"""What a customer does, by the requests of their browser."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flask.testing import FlaskClient
from werkzeug.test import TestResponse


class Shopper:
    """One customer in front of the shop."""

    email = "ada@example.com"

    def __init__(self, client: FlaskClient) -> None:
        self._client = client

    def sign_up(self) -> TestResponse:
        return self._post("/customers", email=self.email)

    def order(self, **lines: int) -> UUID:
        """Sign up and place an order, as in `order(tea=2)`; answer its id."""
        customer = self.sign_up().get_json()["customer"]
        return UUID(self._post("/orders", customer=customer, lines=lines).get_json()["order"])

    def pay(self, order_id: UUID) -> str:
        """Click on "Pay"; answer the id of the job that will charge the card."""
        job_id: str = self._post(f"/orders/{order_id}/payment").get_json()["job"]
        return job_id

    def receive(self, order_id: UUID) -> None:
        """Take the parcel from the carrier, who tells the shop."""
        self._post(f"/orders/{order_id}/delivery", signed_by=self.email)

    def _post(self, path: str, **body: Any) -> TestResponse:
        return self._client.post(path, json=body)
