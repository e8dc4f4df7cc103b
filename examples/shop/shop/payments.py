"""The payment gateway: a double of a provider that is down at times, and that charges each key once."""

from __future__ import annotations


class GatewayDown(Exception):
    """The gateway does not answer."""


class Gateway:
    """Attributes:
    charges: what was charged, in cents, by key.
    outages: how many calls from now on fail.
    """

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}
        self.outages = 0

    def reset(self) -> None:
        """Forget everything."""
        self.charges.clear()
        self.outages = 0

    def charge(self, cents: int, *, key: str) -> None:
        """Charge the customer's card, once for each key.

        Raises:
            GatewayDown: nothing was charged; try again later.
        """
        if self.outages:
            self.outages -= 1
            raise GatewayDown("the payment gateway does not answer")
        self.charges.setdefault(key, cents)


gateway = Gateway()
