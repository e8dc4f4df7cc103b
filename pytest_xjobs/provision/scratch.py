"""The directories that a run's server lives in: where they go, whose they are, and removing those of dead runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pytest_xjobs.provision.errors import ServerFailed
from pytest_xjobs.provision.identity import Identity

PREFIX = "xjobs-"
MARKER = "xjobs-owner"
_ROOMY = 512 * 1024 * 1024


class Scratch:
    """A directory of this run, which later runs can tell from one whose run is dead.

    A marker file in it is locked by us and, through an inherited descriptor, by every program that works in the
    directory. The kernel lets go of the lock when the last of them has ended, however it ended. That is sure where
    process ids are not: they are used again, and mean nothing in another container that shares /dev/shm.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock

    @classmethod
    def create(cls, root: Path, identity: Identity) -> Scratch:
        """A new directory below `root` that belongs to the server's user, mode 0700.

        Raises:
            OSError: `root` cannot be written to.
        """
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        # Locked under another name first: a marker that can be seen is never unlocked while its owner lives.
        unlocked = path / f"{MARKER}.new"
        lock = os.open(unlocked, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: then nobody reaps either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, f"{os.getpid()}\n".encode())
        unlocked.rename(path / MARKER)
        if identity.uid is not None and identity.gid is not None:
            os.chown(path, identity.uid, identity.gid)
        return cls(path, lock)

    def remove(self) -> None:
        """Delete the directory and let go of its lock."""
        _remove(self.path)
        os.close(self.lock)


def _remove(path: Path) -> None:
    """Delete a scratch directory; the marker goes last, so that a deletion cut short is taken up by a later run."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != MARKER:
                os.unlink(entry.path)  # noqa: PTH108 - the entry of a directory being emptied
        (path / MARKER).unlink()
        path.rmdir()


def reap(roots: Iterable[Path] | None = None) -> list[Path]:
    """Remove what killed runs of this user left behind; answers the directories removed.

    Safe beside other runs: whoever holds the lock of a directory's marker owns it, and a removal holds it too.
    """
    removed = []
    for root in scratch_roots() if roots is None else roots:
        for path in root.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                if _reap(path):
                    removed.append(path)
    return removed


def _reap(path: Path) -> bool:
    marker = os.open(path / MARKER, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if os.fstat(marker).st_uid != os.geteuid():
            return False
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(marker).st_nlink == 0:  # somebody else removed it between our open and our lock
            return False
        _remove(path)
        return True
    finally:
        os.close(marker)


def scratch_roots() -> list[Path]:
    """Where scratch directories may be, best first."""
    candidates = [Path("/dev/shm"), Path("/tmp"), Path("/var/tmp")]  # noqa: S108
    with contextlib.suppress(FileNotFoundError):  # nothing that it knows can be written to, as in a read-only container
        candidates.insert(1, Path(tempfile.gettempdir()))
    return [root for root in dict.fromkeys(candidates) if os.access(root, os.W_OK | os.X_OK)]


def is_roomy(root: Path) -> bool:
    """Whether a cluster's data fits below `root`."""
    # Containers get 64 MB of /dev/shm unless told otherwise; a cluster needs 40, plus WAL and data.
    if root != Path("/dev/shm"):  # noqa: S108
        return True
    room = os.statvfs(root)
    return room.f_bavail * room.f_frsize >= _ROOMY


def make_scratch(roots: Iterable[Path], identity: Identity) -> Scratch:
    """A scratch directory below the first of the roots that takes one and that the server's user reaches.

    Raises:
        ServerFailed: none does; the fact says why.
    """
    refusals = []
    for root in roots:
        try:
            if identity.reaches(root.absolute()):
                return Scratch.create(root.absolute(), identity)
            refusals.append(f"{root}: uid {identity.uid} may not enter it")
        except OSError as error:
            refusals.append(f"{root}: {error.strerror}")
    raise ServerFailed(
        f"no directory for a server's files ({'; '.join(refusals) or 'none can be written to'})",
        "set TMPDIR to one that others can enter",
    )
