"""The carrier that fetches parcels: a double of a provider with an async client."""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from uuid import UUID


class Parcel(NamedTuple):
    order_id: UUID
    email: str


parcels: dict[UUID, Parcel] = {}


async def book(reference: UUID, order_id: UUID, email: str) -> None:
    """Have a parcel fetched, one for each reference."""
    await asyncio.sleep(0)  # the network
    parcels[reference] = Parcel(order_id, email)
