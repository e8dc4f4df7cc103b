"""What a worker process does: claim, run and settle jobs of its queues until it is told to stop."""

from __future__ import annotations

from xjobs.worker.limiter import Limiter, Rate
from xjobs.worker.settings import Settings, settings
from xjobs.worker.worker import Worker

__all__ = ["Limiter", "Rate", "Settings", "Worker", "settings"]
