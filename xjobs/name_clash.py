"""Owns the check for the unrelated distribution `xjobs`, which owns the same import name as `pytest-xjobs`.

Whichever of the two is installed last overwrites files of the other, so neither is to be trusted while both are there.
"""

from __future__ import annotations

from functools import cache

__all__ = ["NameClash", "check_import_name"]


class NameClash(ImportError):
    """The unrelated distribution `xjobs` is installed beside `pytest-xjobs`; `path` is where, if known."""


@cache
def check_import_name() -> None:
    """Refuse to go on beside the other distribution; looks once in a process.

    Raises:
        NameClash: a distribution called `xjobs` is installed.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        other = distribution("xjobs")
    except PackageNotFoundError:
        return
    place = str(other.locate_file(""))
    raise NameClash(
        f"the unrelated package xjobs {other.version} is installed in {place}, and it shares the import name `xjobs` "
        "with pytest-xjobs: `pip uninstall xjobs && pip install --force-reinstall pytest-xjobs`",
        name="xjobs",
        path=place,
    )
