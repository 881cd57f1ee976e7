"""JAX is the reference: random layouts against NamedSharding on real host devices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ORACLE = Path(__file__).with_name("namedsharding_oracle.py")
N_EXAMPLES = 3000


def test_layouts_agree_with_named_sharding_on_thousands_of_random_inputs():
    process = subprocess.run(
        [sys.executable, str(ORACLE), str(N_EXAMPLES)], capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr[-4000:]
    outcomes = json.loads(process.stdout)
    errors = {key: n for key, n in outcomes.items() if key.startswith("layout.")}
    assert outcomes["agree"] + sum(errors.values()) >= N_EXAMPLES
    assert outcomes["agree"] > N_EXAMPLES / 2
    # every kind of error occurred
    assert set(errors) == {
        "layout.duplicate_spec_axis",
        "layout.indivisible",
        "layout.spec_too_long",
        "layout.unknown_axis",
    }
