"""The plugin's options: where each was set, and what the run uses.

Every option has a command line form (`--xjobs-x`), an ini key (`xjobs_x`) and an environment variable (`XJOBS_X`); the
command line beats the environment, which beats the ini file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, Literal, TypeVar

import pytest

T = TypeVar("T")

BACKENDS = ("memory", "pg")
_FIXTURE = "fixture:"


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A value and where it was set: `command line`, `environment`, `ini` or `default`."""

    value: T
    source: str


@dataclass(frozen=True)
class Options:
    """What this run uses.

    Attributes:
        backends: on which backends tests run, in order.
        dsn: of an existing server, or None to find or start one.
        isolation: `delete` empties one database between tests, `database` gives each test its own.
        reset: how the app's own tables are emptied: `delete`, `truncate` or `none`.
        keep: names of app tables that a reset leaves alone.
        seed: of all randomness that the plugin controls.
        drain_budget: how many attempts a drain runs at most.
        ddl: whether the DDL that ini `xjobs_ddl` names is checked.
    """

    backends: Setting[tuple[str, ...]]
    dsn: Setting[str | None]
    isolation: Setting[str]
    reset: Setting[Literal["delete", "truncate", "none"]]
    keep: Setting[tuple[str, ...]]
    seed: Setting[int]
    drain_budget: Setting[int]
    ddl: Setting[bool]

    @property
    def server_fixture(self) -> str | None:
        """The session fixture of pytest-postgresql that gives the server, where `dsn` names one."""
        dsn = self.dsn.value or ""
        return dsn.removeprefix(_FIXTURE) if dsn.startswith(_FIXTURE) else None

    @property
    def is_default(self) -> bool:
        """Whether nothing at all was set."""
        return all(getattr(self, field.name).source == "default" for field in fields(self))

    def __str__(self) -> str:
        """The backends, whatever else was set, and the seed; each with its source."""
        parts = [f"backend={','.join(self.backends.value)} ({self.backends.source})"]
        for name in ("dsn", "isolation", "reset", "keep", "drain_budget"):
            setting = getattr(self, name)
            if setting.source != "default":
                # Not the DSN itself: it may hold a password.
                value = "given" if name == "dsn" else ",".join(setting.value) if name == "keep" else setting.value
                parts.append(f"{name}={value} ({setting.source})")
        if self.ddl.value:
            parts.append(f"ddl ({self.ddl.source})")
        source = "" if self.seed.source == "default" else f" ({self.seed.source})"
        return ", ".join([*parts, f"seed={self.seed.value}{source}"])


def add_options(parser: pytest.Parser) -> None:
    """Declare the options to pytest."""
    group = parser.getgroup("xjobs", "job queue tests (pytest-xjobs)")
    group.addoption("--xjobs-pg", action="store_true", default=None, help="run on real Postgres instead of memory")
    for name, metavar, text, parse in _VALUED:
        group.addoption(f"--xjobs-{name.replace('_', '-')}", metavar=metavar, default=None, help=text)
        # The type is what `[tool.pytest]` tables, which know TOML's own, hold the value to.
        kind: Literal["int", "string"] = "int" if parse in _COUNTS else "string"
        parser.addini(f"xjobs_{name}", text, type=kind, default=None)
    group.addoption("--xjobs-ddl", action="store_true", default=None, help="check the DDL that ini xjobs_ddl names")
    for key, text, several in _LISTS:
        parser.addini(key, text, type=several, default=[])
    parser.addini("xjobs_pg", "run on real Postgres instead of memory (true or false)", type="bool", default=None)


def _backends(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names or any(name not in BACKENDS for name in names):
        raise ValueError(f"name one or both of {', '.join(BACKENDS)}")
    return names


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"name one of {', '.join(allowed)}")
        return text

    return parse


def _count(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdigit() or int(text) < low:
            raise ValueError(f"give a whole number from {low}")
        return int(text)

    return parse


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.replace(",", " ").split() if part)


def _flag(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in known:
        raise ValueError("give true or false")
    return known[text.lower()]


_SEED, _BUDGET = _COUNTS = (_count(0), _count(1))

# Name, metavar, help and parser of every option with a value.
_VALUED: tuple[tuple[str, str, str, Callable[[str], Any]], ...] = (
    ("backend", "memory,pg", "the backends that each test runs on", _backends),
    (
        "dsn",
        "DSN",
        "an existing Postgres server to make the test database on, or fixture:NAME of pytest-postgresql",
        str,
    ),
    (
        "isolation",
        "delete|database",
        "empty one database between tests, or give each its own",
        _one_of("delete", "database"),
    ),
    (
        "reset",
        "delete|truncate|none",
        "how the app's own tables are emptied between tests",
        _one_of("delete", "truncate", "none"),
    ),
    ("keep", "TABLES", "app tables that keep their rows between tests; a trailing * takes a prefix", _names),
    ("seed", "N", "seed of retry jitter and other randomness, for repeating a run", _SEED),
    ("drain_budget", "N", "how many attempts a drain runs before it gives up", _BUDGET),
)
_LISTS: tuple[tuple[str, str, Literal["args", "linelist"]], ...] = (
    (
        "xjobs_ddl",
        "DDL to check with --xjobs-ddl: files and module:CONSTANT, one a line, with queries=, versions=, baseline=",
        "linelist",
    ),
    ("xjobs_ddl_rules", "ids and groups of the DDL rules to check", "args"),
    ("xjobs_ddl_ignore", "DDL rules to live with: RULE=reason, one a line", "linelist"),
)
_PARSERS = {name: parse for name, _, _, parse in _VALUED}


def read_options(config: pytest.Config, environ: Mapping[str, str] = os.environ) -> Options:
    """Work out what the run uses.

    Raises:
        pytest.UsageError: a value cannot be; the message names it, its source and what is allowed.
    """
    read = _Reader(config, environ)
    dsn = read("dsn", None)
    return Options(
        backends=_chosen_backends(read, dsn),
        dsn=dsn,
        isolation=read("isolation", "delete"),
        reset=read("reset", "delete"),
        keep=read("keep", ()),
        seed=read("seed", None) if read("seed", None).value is not None else Setting(_fresh_seed(config), "default"),
        drain_budget=read("drain_budget", 1_000),
        ddl=_chosen_ddl(read),
    )


def _chosen_ddl(read: _Reader) -> Setting[bool]:
    """Whether DDL is checked; the ini key of this name says which."""
    for source in ("command line", "environment"):
        wanted = read.at(source, "ddl", _flag)
        if wanted is not None:
            return Setting(wanted, source)
    return Setting(False, "default")


def _chosen_backends(read: _Reader, dsn: Setting[Any]) -> Setting[tuple[str, ...]]:
    """The backends: each source is asked for `backend` and `pg` before the next one is."""
    for source in ("command line", "environment", "ini"):
        named, wants_pg = read.at(source, "backend", _backends), read.at(source, "pg", _flag)
        if named is not None and wants_pg and "pg" not in named:
            raise pytest.UsageError(
                f"xjobs: {source} asks for Postgres and for backend={','.join(named)}: leave one of them out"
            )
        if named is not None:
            return Setting(named, source)
        if wants_pg is not None:
            return Setting(("pg",) if wants_pg else ("memory",), source)
        if source == "command line" and dsn.source == source:
            return Setting(("pg",), "--xjobs-dsn")
    return Setting(("memory",), "default")


def _fresh_seed(config: pytest.Config) -> int:
    """A seed for this run; xdist's workers share their controller's."""
    given = getattr(config, "workerinput", {}).get("xjobs_seed")
    return int(given) if given is not None else int.from_bytes(os.urandom(4), "big")


class _Reader:
    """Reads single options from their three places."""

    def __init__(self, config: pytest.Config, environ: Mapping[str, str]) -> None:
        self._config = config
        self._environ = environ

    def __call__(self, name: str, default: Any) -> Setting[Any]:
        for source in ("command line", "environment", "ini"):
            value = self.at(source, name, _PARSERS[name])
            if value is not None:
                return Setting(value, source)
        return Setting(default, "default")

    def at(self, source: str, name: str, parse: Callable[[str], Any]) -> Any:
        """The option's value at one place, or None."""
        if source == "command line":
            raw = self._config.getoption(f"xjobs_{name}", default=None)
        elif source == "environment":
            raw = self._environ.get(f"XJOBS_{name.upper()}")
        else:
            raw = self._ini(name)
        if raw is None or raw == "" or isinstance(raw, bool):
            return None if raw == "" else raw
        try:
            return parse(str(raw).strip())
        except ValueError as problem:
            raise pytest.UsageError(f"xjobs: {source} sets {name} to {raw!r}: {problem}") from None

    def _ini(self, name: str) -> Any:
        try:
            return self._config.getini(f"xjobs_{name}")
        except (ValueError, pytest.UsageError) as problem:  # pytest before 9 lets its own conversion's error through
            wanted = {"pg": "true or false", "seed": "a whole number", "drain_budget": "a whole number"}
            raise pytest.UsageError(f"xjobs: ini sets {name}: {problem}: give {wanted.get(name, 'a text')}") from None
