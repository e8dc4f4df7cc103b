"""Owns `python -m xjobs.cli`, the same as the `xjobs` command."""

from __future__ import annotations

from xjobs.cli import main

main()
