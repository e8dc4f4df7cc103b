"""Unit tests declare jobs of any name: each has the registry to itself."""

from __future__ import annotations

import pytest

from xjobs import registry


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "_cached", None)
