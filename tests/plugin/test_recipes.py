"""The recipes for frameworks in docs/testing.md, as they stand there: blocks that say which framework they are for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from inner_run import Inner

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCK = re.compile(
    r"^```(?:python|ini) (?P<recipe>\w+)\n(?:# (?P<path>\S+)\n)?(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
DJANGO = {
    "settings.py": """
USE_TZ = True
INSTALLED_APPS = ["orders"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "app.db"}}
""",
    "orders/__init__.py": "",
    "orders/models.py": """
from django.db import models

class Order(models.Model):
    state = models.CharField(max_length=20, default="new")

class Country(models.Model):
    code = models.CharField(max_length=2)
""",
    "orders/migrations/__init__.py": "",
    "orders/migrations/0001_initial.py": """
from django.db import migrations, models

ID = ("id", models.BigAutoField(primary_key=True, serialize=False))

class Migration(migrations.Migration):
    operations = [
        migrations.CreateModel("Order", [ID, ("state", models.CharField(max_length=20, default="new"))]),
        migrations.CreateModel("Country", [ID, ("code", models.CharField(max_length=2))]),
        migrations.RunPython(lambda apps, _: apps.get_model("orders", "Country").objects.create(code="de")),
    ]
""",
    "orders/jobs.py": """
import xjobs
from orders.models import Order

@xjobs.job(key="confirm:{order_id}")
def confirm(order_id: int) -> None:
    Order.objects.filter(pk=order_id).update(state="confirmed")
""",
    # Two of a class, and both orders of the fixtures; before the tests of the page, which empty all tables.
    "test_a_first.py": """
import pytest
from django.test import TestCase
from orders.jobs import confirm
from orders.models import Country, Order

class Tests(TestCase):
    @pytest.fixture(autouse=True)
    def use_queue(self, xjobs_queue):
        self.queue = xjobs_queue

    @classmethod
    def setUpTestData(cls):
        cls.order = Order.objects.create()

    def confirm(self):
        assert [country.code for country in Country.objects.all()] == ["de"]
        confirm.enqueue(order_id=self.order.pk)
        self.queue.drain()
        assert Order.objects.get().state == "confirmed"

    def test_one(self): self.confirm()
    def test_two(self): self.confirm()

class Again(Tests): ...

def check(queue):
    confirm.enqueue(order_id=Order.objects.create().pk)
    assert len(queue.drain().runs) == 1
    assert Order.objects.get().state == "confirmed"

def test_db_first(db, xjobs_queue):
    check(xjobs_queue)

def test_queue_first(xjobs_queue, db):
    check(xjobs_queue)
""",
}
FASTAPI = {
    "test_blocking.py": """
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about httpx
    from starlette.testclient import TestClient

from app import ship

def test_it(app, xjobs_queue):
    with TestClient(app) as client:
        client.post("/orders").raise_for_status()
        xjobs_queue.drain()
    xjobs_queue.assert_ran(ship)
"""
}
INI = """
pythonpath = .
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""


def write(inner: Inner, recipe: str, files: dict[str, str]) -> None:
    """Write the files of a recipe, and those that it takes for granted."""
    blocks = [block for block in BLOCK.finditer(PAGE.read_text()) if block["recipe"] == recipe]
    found = {block["path"] or "pytest.ini": block["code"] for block in blocks}
    assert found
    found["pytest.ini"] = found.get("pytest.ini", "[pytest]\n") + INI
    for path, code in {**files, **found}.items():
        target = inner.pytester.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(code)


def arguments(inner: Inner, backend: str) -> tuple[str, ...]:
    return {"memory": (), "pg": (inner.pg,), "memory,pg": inner.both}[backend]


@pytest.mark.parametrize(("backend", "passed"), [("memory", 9), ("pg", 9), ("memory,pg", 13)])
def test_django(inner: Inner, backend: str, passed: int) -> None:
    pytest.importorskip("pytest_django")
    write(inner, "django", DJANGO)
    inner.subprocess(*arguments(inner, backend)).assert_outcomes(passed=passed)


def test_django_with_xdist(inner: Inner) -> None:
    pytest.importorskip("pytest_django")
    write(inner, "django", DJANGO)
    inner.subprocess(inner.pg, "-n2").assert_outcomes(passed=9)


@pytest.mark.parametrize(("backend", "passed"), [("memory", 2), ("pg", 2), ("memory,pg", 4)])
def test_fastapi(inner: Inner, backend: str, passed: int) -> None:
    pytest.importorskip("fastapi")
    write(inner, "fastapi", FASTAPI)
    inner.subprocess(*arguments(inner, backend)).assert_outcomes(passed=passed)
