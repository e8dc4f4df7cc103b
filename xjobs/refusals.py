"""Where in an input a conversion stumbled, and over what: msgspec's answer, with what it leaves out.

msgspec names no keys of mappings (`$.value[...][1]`), and nothing inside what pydantic rebuilds.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

from xjobs.fields import problem_of_model

_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+)\]|(\[\.\.\.\])")
_NOWHERE = object()


def explain(problem: Exception, stored: Any, convert: Callable[[Any], Any]) -> tuple[str, str]:
    """The path and the reason of a refusal, with the value where it is short.

    Args:
        problem: what `convert(stored)` raised.
        stored: the whole input.
        convert: tried again with parts of it, to find the keys that msgspec does not name.
    """
    text, _, place = str(problem).rpartition(" - at `")
    if not text:
        text, place = place, ""
    path, here = "input", copy.deepcopy(stored)
    root = here
    for step in _steps(place):
        if step is Ellipsis:
            step = _refused_key(here, lambda: convert(root))  # noqa: PLW2901
        path += spelled(step)
        here = _inside(here, step)
    refused = problem_of_model(problem.__cause__)
    if refused is not None:
        steps, text = refused
        for step in steps:
            path += spelled(step)
            here = _inside(here, step)
    text = text[:1].lower() + text[1:]
    return path, text if here is _NOWHERE or isinstance(here, dict | list) else f"{text}, the value is {short(here)}"


def _steps(place: str) -> Iterator[Any]:
    """Names, indexes, and `...` for a key that is not named."""
    for name, index, _ in _STEP.findall(place):
        yield name or (int(index) if index else Ellipsis)


def spelled(step: Any) -> str:
    """A step of a path as paths have it: an index, a name, or `...`."""
    if step is Ellipsis:
        return "[...]"
    return f"[{step}]" if isinstance(step, int) else f".{step}"


def _inside(here: Any, step: Any) -> Any:
    try:
        return here[step]
    except (LookupError, TypeError):
        return _NOWHERE


def _refused_key(mapping: Any, convert: Callable[[], Any]) -> Any:
    """The first key of a mapping that is refused, found by halving; afterwards the mapping has no other."""
    if not isinstance(mapping, dict):
        return Ellipsis
    whole = dict(mapping)

    def refused(keys: list[str]) -> bool:
        mapping.clear()
        mapping.update((key, whole[key]) for key in keys)
        try:
            convert()
        except Exception:  # noqa: BLE001 - whatever it is: it was raised for these keys
            return True
        return False

    keys = list(whole)
    while len(keys) > 1:
        half = keys[: len(keys) // 2]
        keys = half if refused(half) else keys[len(half) :]
    refused(keys)
    return keys[0] if keys else Ellipsis


def short(value: Any) -> str:
    """A value for a message, cut at 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
