"""The process of a server of our own: started so that it ends when we do, and ended with all that belongs to it."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from pytest_xjobs.provision.identity import Identity
from pytest_xjobs.provision.programs import program_environment
from pytest_xjobs.provision.scratch import Scratch
from pytest_xjobs.provision.waiting import POLL, seconds

# Runs between us and `postgres`, in a process of its own, and becomes the server. What it does could be a `preexec_fn`,
# but that runs Python in the fork of a process that may have threads (xdist's controller has), which can deadlock.
#
# The server has to end with us also when we are killed. Linux sends a signal on the parent's death, but counts the
# death of the *thread* that forked; so that is used from the main thread only. Otherwise a small process waits on a
# pipe that we hold open; it is a child of the server, which tells it whether that server is still the one it knew.
_LAUNCHER = """
import ctypes, os, signal, sys  # all while Python's own files can still be read: they may be in root's home
parent, uid, gid, guard, *command = sys.argv[1:]
if uid:
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
if guard == "death-signal":
    ctypes.CDLL(None).prctl(1, int(signal.SIGQUIT), 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("pytest ended before the server started")
else:
    pipe, server = int(guard), os.getpid()
    if os.fork() == 0:
        os.closerange(0, pipe)
        os.closerange(pipe + 1, 1024)
        while os.read(pipe, 1):
            pass
        if os.getppid() == server:
            os.kill(server, signal.SIGQUIT)
        os._exit(0)
    os.close(pipe)
os.execv(command[0], command)
"""


@dataclasses.dataclass
class Parts:
    """What a cluster owns, in the order it came to be; ending it goes backwards."""

    scratches: list[Scratch] = dataclasses.field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    pipe: int | None = None
    owner: int = dataclasses.field(default_factory=os.getpid)

    def end(self) -> None:
        """End the process and delete its directories; nothing happens the second time, or in a forked child."""
        if os.getpid() != self.owner:  # a forked child does not own its parent's server
            return
        if self.process is not None:
            _end(self.process)
            self.process = None
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None
        while self.scratches:
            self.scratches.pop().remove()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Fast shutdown, then immediate, then by force; each with a bound in seconds."""
    for number, bound in ((signal.SIGINT, 10.0), (signal.SIGQUIT, 6.0), (signal.SIGKILL, 5.0)):
        if process.poll() is not None:
            return
        process.send_signal(number)
        deadline = seconds() + bound
        # Popen.wait(timeout) reads a clock that a frozen test stops.
        while process.poll() is None and seconds() < deadline:
            time.sleep(POLL)


def launch(command: list[str], identity: Identity, home: Scratch, log: Path, parts: Parts) -> subprocess.Popen[bytes]:
    """Start a program that ends when we do; it appears in `parts` at once."""
    guard, inherited = "death-signal", [home.lock]
    if not sys.platform.startswith("linux") or threading.current_thread() is not threading.main_thread():
        reading, parts.pipe = os.pipe()
        guard = str(reading)
        inherited.append(reading)
    uid, gid = ("" if number is None else str(number) for number in (identity.uid, identity.gid))
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), uid, gid, guard]
    with log.open("wb") as output:
        parts.process = subprocess.Popen(  # noqa: S603
            [*launcher, *identity.prefix, *command],
            pass_fds=inherited,
            cwd=home.path,
            env=program_environment(home.path),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal is for pytest, which needs the server to tidy up.
            start_new_session=True,
        )
    if parts.pipe is not None:
        os.close(inherited[-1])
    return parts.process
