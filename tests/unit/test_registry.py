"""The declared jobs of a process, by name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import xjobs
from xjobs import registry


def declared(name: str, **options: Any) -> Any:
    def body() -> None: ...

    return xjobs.job(key=xjobs.NO_KEY, name=name, **options)(body)


def test_jobs_are_listed_by_the_code_units_of_their_names() -> None:
    names = ["b", "a", "B", "ä", "a.b", "_"]
    for name in names:
        declared(name)
    assert [handle.name for handle in xjobs.registered_jobs()] == sorted(names)


def test_a_job_is_found_by_its_name() -> None:
    handle = declared("a")
    assert registry.find("a") is handle
    assert registry.find("b") is None


def test_a_second_job_of_one_name_is_refused_and_the_first_stays() -> None:
    first = declared("a")
    with pytest.raises(
        xjobs.JobDuplicate, match=r"test_registry\.py:\d+ and already at .*test_registry\.py:\d+"
    ) as caught:

        @xjobs.job(key=xjobs.NO_KEY, name="a")
        def other() -> None: ...

    assert (caught.value.code, caught.value.name) == ("X_JOB_DUPLICATE", "a")
    assert registry.find("a") is first


def test_a_name_of_the_function_and_a_given_one_are_one_namespace() -> None:
    declared("other")
    with pytest.raises(xjobs.JobDuplicate):

        @xjobs.job(key=xjobs.NO_KEY)
        def other() -> None: ...


def test_the_same_code_takes_its_own_place() -> None:
    declared("a")
    again = declared("a")
    assert xjobs.registered_jobs() == [again]


def test_a_reloaded_module_takes_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reloaded_jobs.py").write_text(
        "import xjobs\n\n@xjobs.job(key=xjobs.NO_KEY)\ndef reloaded() -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("reloaded_jobs")
    try:
        first = module.reloaded
        again = importlib.reload(module).reloaded
        assert again is not first
        assert registry.find("reloaded") is again
    finally:
        del sys.modules["reloaded_jobs"]


def test_the_queues_and_the_dropping_jobs_follow_the_declarations() -> None:
    assert (registry.queues(), registry.dropping()) == (frozenset(), [])
    declared("b", queue="mail", retry=xjobs.Retry(dead_letter=False))
    declared("a", retry=xjobs.Retry(dead_letter=False))
    declared("c")
    assert (registry.queues(), registry.dropping()) == (frozenset({"mail", "default"}), ["a", "b"])


def test_a_scope_forgets_what_functions_declared_in_it() -> None:
    outer = declared("outer", queue="o")
    with registry.scope():
        declared("inner", queue="i")
        assert registry.queues() == {"o", "i"}
    assert xjobs.registered_jobs() == [outer]
    assert registry.queues() == {"o"}


def test_a_scope_that_fails_forgets_too() -> None:
    with pytest.raises(LookupError), registry.scope():
        declared("inner")
        raise LookupError
    assert xjobs.registered_jobs() == []
