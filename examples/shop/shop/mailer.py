"""Sending mail. Here it lands in a list; a shop in earnest puts its mail provider's client in this place."""

from __future__ import annotations

from typing import NamedTuple


class Mail(NamedTuple):
    to: str
    subject: str


outbox: list[Mail] = []


def send(to: str, subject: str) -> None:
    """Send one mail."""
    outbox.append(Mail(to, subject))
