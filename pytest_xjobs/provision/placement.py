"""As whom and from where a server runs on this machine, found out by trying."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pytest_xjobs.provision.binaries import Binaries
from pytest_xjobs.provision.errors import ServerFailed
from pytest_xjobs.provision.identity import Identity, possible_identities
from pytest_xjobs.provision.scratch import MARKER, Scratch, scratch_roots


def settle(binaries: Binaries) -> tuple[Identity, Path, Scratch | None]:
    """As whom and from where to run the server, by trying: (identity, bin directory, the copy it lies in).

    Raises:
        ServerFailed: no way works here; the fact lists what was tried.
    """
    refusals = []
    identities = list(possible_identities())
    for identity in identities:
        refusal = identity.run([str(binaries.directory / "postgres"), "--version"], home=Path("/"))
        if refusal is None:
            return identity, binaries.directory, None
        refusals.append(f"{identity}: {refusal.strip()}")
    for identity in identities:
        if identity.uid is None:
            continue
        # Left for last, since it takes 0.1 s in memory and more than 1 s on disk.
        for root in filter(identity.reaches, scratch_roots()):
            try:
                copy, directory = _copy(binaries.directory, root, identity)
            except OSError as error:  # root without the right to change owners, or no room
                refusals.append(f"{identity}, from a copy in {root}: {error.strerror}")
                continue
            refusal = identity.run([str(directory / "postgres"), "--version"], home=copy.path)
            if refusal is None:
                return identity, directory, copy
            copy.remove()  # such as a tmpfs mounted noexec
            refusals.append(f"{identity}, from a copy in {root}: {refusal.strip()}")
    tried = "\n".join(f"  {refusal}" for refusal in refusals) or f"  uid {os.geteuid()} has no passwd entry"
    raise ServerFailed(
        f"PostgreSQL in {binaries.directory} cannot be run by uid {os.geteuid()}; tried\n{tried}",
        "Run the tests as a user that has a passwd entry (add a line for this uid to /etc/passwd), allow user "
        "namespaces, or name a running server with `--xjobs-dsn=`.",
    )


def _copy(directory: Path, root: Path, identity: Identity) -> tuple[Scratch, Path]:
    """The installation around a bin directory, copied to where the server's user can read it."""
    scratch = Scratch.create(root, identity)
    installation = directory.parent
    package = installation.parent
    target = scratch.path / package.name / installation.name
    skipped = shutil.ignore_patterns("include", "__pycache__")
    try:
        shutil.copytree(installation, target, symlinks=True, ignore=skipped)
        # Wheels keep shared libraries in a sibling directory that the programs name relative to themselves.
        libraries = package.parent / f"{package.name}.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, scratch.path / libraries.name, symlinks=True)
        for place, _, files in os.walk(scratch.path):
            for path in (place, *(f"{place}/{name}" for name in files if name != MARKER)):
                os.chown(path, identity.uid or 0, identity.gid or 0, follow_symlinks=False)
    except BaseException:
        scratch.remove()
        raise
    return scratch, target / directory.name
