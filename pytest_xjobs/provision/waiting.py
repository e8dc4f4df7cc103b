"""How waiting for a server is timed, also while tests are frozen."""

from __future__ import annotations

import time

POLL = 0.002  # seconds
# freezegun swaps functions that are attributes of modules; one inside a tuple keeps going while tests are frozen.
CLOCK = (time.monotonic,)
