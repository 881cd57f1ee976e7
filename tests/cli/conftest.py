"""Commands under test can be interrupted, however the tests themselves were started."""

from __future__ import annotations

import signal

# A shell starts what it puts in the background with SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
