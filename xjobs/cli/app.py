"""Owns how a command finds the app whose jobs it works with: `module` or `module:attribute`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from xjobs.cli.failure import Failure

__all__ = ["load_app"]


def load_app(path: str) -> Any:
    """Import the module that declares the app's jobs and answer the attribute, or the module when none is named.

    The working directory is looked in first. An attribute that is a plain function is called, without arguments, to
    set the app up, and what it returns is answered.

    Raises:
        Failure: there is no such module or attribute, or the app's own code raised; then the message is its traceback.
    """
    name, separator, attribute = path.partition(":")
    if not name or (separator and not attribute) or not all(part.isidentifier() for part in name.split(".")):
        raise Failure(f"--app is {path!r}: write module or module:attribute, such as app.jobs or app.main:app")
    if "" not in sys.path:
        sys.path.insert(0, "")
    module = _imported(name)
    return _attribute(module, attribute) if attribute else module


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (name == missing.name or name.startswith(f"{missing.name}.")):
            raise Failure(
                f"there is no module {missing.name!r} (--app {name}), looked for in {os.getcwd()} and sys.path:"  # noqa: PTH109
                " run the command where the app's package is, or set PYTHONPATH"
            ) from None
        raise _of_the_app(name, missing) from None
    except Exception as error:  # noqa: BLE001 - whatever the app's code raises
        raise _of_the_app(name, error) from None


def _attribute(module: ModuleType, attribute: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            near = get_close_matches(part, dir(found), n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise Failure(f"module {module.__name__!r} has no attribute {attribute!r}{hint}") from None
    if inspect.iscoroutinefunction(found):
        raise Failure(
            f"{module.__name__}:{attribute} is an async def function: name the module, or a def that sets it up"
        )
    if not inspect.isfunction(found):
        return found
    try:
        return found()
    except Exception as error:  # noqa: BLE001 - whatever the app's code raises
        raise _of_the_app(f"{module.__name__}:{attribute}", error) from None


def _of_the_app(path: str, error: Exception) -> Failure:
    """A failure that shows the traceback of the app's own code, from where it begins."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    shown = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    return Failure(f"{path} raised {type(error).__name__}:\n{shown}")


def _is_ours(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib") or filename == importlib.__file__
