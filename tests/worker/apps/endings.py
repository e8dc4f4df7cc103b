"""An app whose bodies stand in the way of their worker's end, each in its own manner."""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from types import FrameType

from xjobs import job

AT_EXIT = float(os.environ.get("APP_AT_EXIT", "0"))
"""Seconds that the app's handler at exit takes."""

_pool = ThreadPoolExecutor(1, thread_name_prefix="own")


def set_up() -> None:
    """For the worker's process; tests import the app as well."""
    atexit.register(_at_exit)
    signal.signal(signal.SIGUSR1, _usr1)


def _say(text: str) -> None:
    """Print a line in one piece: `print` writes it in several, between which a line of the log may come."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _at_exit() -> None:
    time.sleep(AT_EXIT)
    _say("handler at exit ran")


def _usr1(_number: int, _frame: FrameType | None) -> None:
    _say("usr1 came")


@job(key="{n}", retry=3)
async def idles(n: int, seconds: float) -> None:
    """Sleep, as a well-behaved body does."""
    _say("body began")
    await asyncio.sleep(seconds)


@job(key="{n}", retry=3)
async def crunch(n: int, rounds: int) -> None:
    """Block the event loop within one call into C; 2,000,000,000 rounds take many minutes."""
    _say("body began")
    hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", rounds)
    _say("body ended")


@job(key="{n}", timeout=0.5, retry=1)
async def leaves_thread(n: int, seconds: float) -> None:
    """Leave a thread behind that a process waits for at its exit."""
    await asyncio.to_thread(time.sleep, seconds)


@job(key="{n}", timeout=0.5, retry=1)
async def leaves_own_thread(n: int, seconds: float) -> None:
    """The same with one that the event loop does not know."""
    await asyncio.wrap_future(_pool.submit(time.sleep, seconds))


@job(key="{n}", retry=3)
async def takes_threads(n: int, seconds: float) -> None:
    """Leave no thread to be had: there is no room for such a stack."""
    threading.stack_size(1 << 46)
    try:
        threading.Thread(target=print).start()
    except RuntimeError as refused:
        _say(f"body began: {refused}")
    await asyncio.sleep(seconds)


def _child(tell: Connection) -> None:
    own = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    own = own and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    tell.send((own, signal.set_wakeup_fd(-1), len(signal.pthread_sigmask(signal.SIG_BLOCK, []))))
    time.sleep(600)


def _fork_and_end_it() -> None:
    fork = multiprocessing.get_context("fork")
    hear, tell = fork.Pipe(duplex=False)
    child = fork.Process(target=_child, args=(tell,))
    child.start()
    _say(f"child has {hear.recv() if hear.poll(20) else 'said nothing'}")
    child.terminate()
    child.join(5)
    _say(f"child ended by {child.exitcode}")
    child.kill()


def _fork_and_end_it_at_once(times: int) -> None:
    ended = set()
    for _ in range(times):
        child = os.fork()
        if child == 0:
            try:
                time.sleep(5)
            finally:
                os._exit(0)
        os.kill(child, signal.SIGTERM)
        ended.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    _say(f"children ended by {ended}")


@job(key="{n}", retry=1)
async def forks(n: int) -> None:
    """Fork from the main thread."""
    _fork_and_end_it()
    _fork_and_end_it_at_once(30)


@job(key="{n}", retry=1)
def forks_in_thread(n: int) -> None:
    """Fork from another one."""
    _fork_and_end_it()
    _fork_and_end_it_at_once(30)


@job(key="{n}", retry=3)
async def listens(n: int, seconds: float) -> None:
    """Have the event loop take the descriptor that signals are written to."""
    heard = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, heard.set)
    _say("body began")
    async with asyncio.timeout(seconds):
        await heard.wait()
    _say("usr2 came")
    await asyncio.sleep(1.0)


@job(key="{n}", retry=1)
async def strays(n: int) -> None:
    """Have the loop itself end the process, outside of every task."""
    asyncio.get_running_loop().call_soon(sys.exit, 0)
    await asyncio.sleep(600)


@job(key="{n}", retry=1)
async def stops_loop(n: int) -> None:
    """Stop what it runs on."""
    asyncio.get_running_loop().stop()
    await asyncio.sleep(600)
