"""A small shop: Flask for the requests, SQLAlchemy for the data, xjobs for everything that need not happen at once."""

from __future__ import annotations

from flask import Flask

from shop import database, views


def create_app(database_url: str) -> Flask:
    """The shop on one database, which holds its tables and its job queue."""
    app = Flask(__name__)
    app.extensions["database"] = database.connect(database_url)
    app.register_blueprint(views.shop)
    return app
