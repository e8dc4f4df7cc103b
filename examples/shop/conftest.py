"""The shop under test: on SQLite where jobs are in memory, on the test's own Postgres database with `--xjobs-pg`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from flask import Flask
from pytest_xjobs import XjobsQueue

from shop import carrier, create_app, mailer, payments
from shop.carrier import Parcel
from shop.database import Session, create_shop_engine
from shop.mailer import Mail
from shop.models import Base, Product
from shop.payments import Gateway
from shopper import Shopper


def pytest_xjobs_database_setup(dsn: str) -> None:
    """Make the shop's tables in the test database; a shop in earnest runs its migrations here."""
    engine = create_shop_engine(dsn)
    Base.metadata.create_all(engine)
    engine.dispose()


@pytest.fixture
def database_url(xjobs_queue: XjobsQueue, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if xjobs_queue.backend == "postgres":
        dsn: str = request.getfixturevalue("xjobs_dsn")
        return dsn
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    pytest_xjobs_database_setup(url)
    return url


@pytest.fixture
def app(database_url: str) -> Iterator[Flask]:
    app = create_app(database_url)
    with Session.begin() as session:
        session.add_all([Product(sku="tea", cents=450, stock=10), Product(sku="mug", cents=1200, stock=5)])
    yield app
    app.extensions["database"].dispose()


@pytest.fixture
def shopper(app: Flask) -> Shopper:
    """A customer to be, in front of a browser."""
    return Shopper(app.test_client())


@pytest.fixture(autouse=True)
def outside_world() -> Iterator[None]:
    """No test sees the mail, charges and parcels of another."""
    yield
    mailer.outbox.clear()
    payments.gateway.reset()
    carrier.parcels.clear()


@pytest.fixture
def outbox() -> list[Mail]:
    """The mail that the shop has sent."""
    return mailer.outbox


@pytest.fixture
def gateway() -> Gateway:
    """The payment provider: set `outages` to have it fail."""
    return payments.gateway


@pytest.fixture
def parcels() -> dict[UUID, Parcel]:
    """The parcels that the carrier will fetch, by the reference under which they were booked."""
    return carrier.parcels
