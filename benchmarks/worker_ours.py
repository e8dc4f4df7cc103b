"""One worker of ours for benchmarks/worker.py: `worker_ours.py DSN BODY SLOTS [uvloop]`; a line has it begin."""

from __future__ import annotations

import asyncio
import sys
import time

import psycopg

import xjobs
from xjobs.cli.worker import spare_collector
from xjobs.worker import Worker


@xjobs.job(key=xjobs.NO_KEY, queue="async")
async def async_noop(n: int) -> None: ...


@xjobs.job(key=xjobs.NO_KEY, queue="def")
def def_noop(n: int) -> None: ...


@xjobs.job(key=xjobs.NO_KEY, queue="stamp")
async def stamp(sent: float) -> None:
    print(time.time() - sent, flush=True)


BODIES = {"async": async_noop, "def": def_noop, "stamp": stamp}


async def main(dsn: str, body: str, slots: int) -> None:
    worker = Worker.connect(dsn, queues=[body], concurrency=slots)
    psycopg.connect(dsn).close()
    spare_collector()  # as `xjobs worker` does
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await worker.run()


if __name__ == "__main__":
    new_loop = None
    if sys.argv[4:] == ["uvloop"]:
        import uvloop

        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
