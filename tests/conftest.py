"""Settings of every test process."""

from __future__ import annotations

import os

# Each program is compiled to run once or twice, so what it costs is compiling it. Without LLVM's
# expensive passes a result changes by no more than the order of a sum.
_FAST_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if "--xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FAST_COMPILE}".strip()
