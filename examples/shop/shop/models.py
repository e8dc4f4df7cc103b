"""The shop's tables."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID, uuid4

from sqlalchemy import DateTime, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """What all tables share."""


class Customer(Base):
    __tablename__ = "customer"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)


class Product(Base):
    __tablename__ = "product"

    sku: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]
    stock: Mapped[int]


class Order(Base):
    __tablename__ = "customer_order"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    customer_id: Mapped[int] = mapped_column(ForeignKey(Customer.id))
    paid_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    customer: Mapped[Customer] = relationship()
    lines: Mapped[list[OrderLine]] = relationship(order_by="OrderLine.id")

    @property
    def cents(self) -> int:
        """What the customer pays."""
        return sum(line.quantity * line.product.cents for line in self.lines)


class OrderLine(Base):
    __tablename__ = "order_line"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[UUID] = mapped_column(ForeignKey(Order.id))
    sku: Mapped[str] = mapped_column(ForeignKey(Product.sku))
    quantity: Mapped[int]
    taken: Mapped[bool] = mapped_column(default=False)
    product: Mapped[Product] = relationship()
