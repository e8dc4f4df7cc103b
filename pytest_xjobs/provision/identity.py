"""As which user the programs of a server may run here."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_xjobs.provision.programs import program_environment


class Identity(NamedTuple):
    """As whom server programs run: a user id to change to (None: stay), or a command put before theirs."""

    uid: int | None = None
    gid: int | None = None
    prefix: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.prefix:
            return "in a user namespace (unshare)"
        return "as this user" if self.uid is None else f"as uid {self.uid}"

    def run(self, command: Sequence[str], *, home: Path, lock: int | None = None, timeout: float = 30) -> str | None:
        """Run a program to its end; None when it succeeded, else what it said."""
        try:
            done = subprocess.run(  # noqa: S603 - programs of the installation that was found
                [*self.prefix, *command],
                user=self.uid,
                group=self.gid,
                extra_groups=None if self.uid is None else [],
                pass_fds=() if lock is None else (lock,),
                cwd=home,
                env=program_environment(home),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return f"exit status {done.returncode}: {done.stdout.decode(errors='replace')}" if done.returncode else None

    def reaches(self, path: Path) -> bool:
        """Whether this user may walk down to `path`, by mode bits."""
        if self.uid is None:
            return True
        for step in (path, *path.parents):
            state = step.stat()
            bit = 0o100 if state.st_uid == self.uid else 0o010 if state.st_gid == self.gid else 0o001
            if not state.st_mode & bit:
                return False
        return True


def possible_identities() -> Iterator[Identity]:
    """As whom Postgres might run here, best first: it refuses root, and initdb refuses a uid without a name."""
    if os.geteuid() == 0:
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                yield Identity(entry.pw_uid, entry.pw_gid)
    else:
        with contextlib.suppress(KeyError):
            pwd.getpwuid(os.geteuid())
            yield Identity()
    unshare = shutil.which("unshare")
    named = next((entry for entry in reversed(pwd.getpwall()) if entry.pw_uid), None)
    if unshare and named:
        with contextlib.suppress(KeyError):
            named = pwd.getpwnam("nobody")
        mapping = (f"--map-user={named.pw_uid}", f"--map-group={named.pw_gid}")
        yield Identity(prefix=(unshare, "--user", *mapping, "--"))
