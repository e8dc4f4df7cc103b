"""A wheel of this package, installed into a clean environment, runs a worker. Long: only with XJOBS_LONG."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
from pathlib import Path

import psycopg
import pytest
from processes import LONG, until

ROOT = Path(__file__).parents[2]
APP = """
import xjobs

@xjobs.job(key="{n}")
async def work(n: int) -> None: ...
"""
ENQUEUE = "import app, sys, xjobs; xjobs.Queue.connect(sys.argv[1]).enqueue(app.work.call(n=1))"


@pytest.mark.skipif(not LONG, reason="installs the package and all that it needs: set XJOBS_LONG=1")
def test_an_installed_wheel_runs_a_worker(tmp_path: Path, dsn: str, control: psycopg.Connection[tuple[int]]) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("pytest_xjobs-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    binaries = tmp_path / "env" / "bin"
    subprocess.run([binaries / "python", "-m", "pip", "install", "-q", str(wheel)], check=True)
    (tmp_path / "app.py").write_text(APP)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PG", "XJOBS"))}
    clean["XJOBS_DSN"] = dsn
    subprocess.run([binaries / "python", "-c", ENQUEUE, dsn], check=True, cwd=tmp_path, env=clean)
    command = [str(binaries / "xjobs"), "worker", "--app", "app"]
    with subprocess.Popen(command, cwd=tmp_path, env=clean) as worker:
        try:
            until("the job to be done", lambda: _done(control))
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(20) == 0
        finally:
            worker.kill()


def _done(control: psycopg.Connection[tuple[int]]) -> bool:
    row = control.execute("select count(*) from x_jobs where state = 'done'").fetchone()
    return row == (1,)
