"""What a worker may be told."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

import xjobs
from xjobs import NO_KEY, job
from xjobs.worker import Worker, settings


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": -1}, "-1"),
        ({"concurrency": 2.5}, "2.5"),
        ({"concurrency": True}, "True"),
        ({"concurrency": {"default": 0}}, "concurrency of 'default' is 0"),
        ({"concurrency": {"elsewhere": 2}}, "queue 'elsewhere', which is not served"),
        ({"queues": []}, "no queue"),
        ({"queues": "mail"}, "queues is the text 'mail'"),
        ({"queues": [""]}, "queue is ''"),
        ({"lease": 0}, "lease is 0"),
        ({"lease": math.nan}, "lease is nan"),
        ({"lease": math.inf}, "lease is inf"),
        ({"lease": 1, "heartbeat": 1}, "renew at least twice"),
        ({"heartbeat": 0}, "heartbeat is 0"),
        ({"poll": 0}, "poll is 0"),
        ({"poll": math.nan}, "poll is nan"),
        ({"idle_poll": -1}, "idle_poll is -1"),
        ({"shutdown": math.inf}, "shutdown is inf"),
        ({"shutdown": 0}, "shutdown is 0"),
        ({"worker_id": ""}, "worker_id is ''"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_its_value(options: dict[str, Any], named: str) -> None:
    with pytest.raises(xjobs.Invariant) as refused:
        settings(**options)
    assert named in str(refused.value)


def test_the_defaults() -> None:
    @job(key=NO_KEY, queue="mail")
    def work() -> None: ...

    given = settings(concurrency={"mail": 3})
    assert given.queues["mail"] == 3
    assert given.lease == timedelta(seconds=30)
    assert given.heartbeat == timedelta(seconds=10)
    assert given.shutdown == timedelta(seconds=25)
    assert given.worker_id != settings().worker_id
    assert settings(queues=["b", "a", "b"]).queues == {"a": 8, "b": 8}


def test_the_longest_pause_is_never_below_the_shortest() -> None:
    given = settings(poll=10)
    assert (given.idle_poll, given.idle_poll_woken) == (timedelta(seconds=10),) * 2


def test_a_worker_cannot_serve_what_no_other_process_sees() -> None:
    with pytest.raises(xjobs.Invariant, match="memory://"):
        Worker.connect("memory://")


def test_over_is_for_memory() -> None:
    with pytest.raises(xjobs.Invariant, match=r"Worker\.connect"):
        Worker.over(xjobs.Queue.connect("postgresql://nowhere/x"))
