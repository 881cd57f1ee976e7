"""JAX is the judge: random layouts against NamedSharding on real host devices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ORACLE = Path(__file__).with_name("namedsharding_oracle.py")
N_EXAMPLES = 3000


def test_layouts_agree_with_named_sharding_on_thousands_of_random_questions():
    done = subprocess.run(
        [sys.executable, str(ORACLE), str(N_EXAMPLES)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    refused = {key: n for key, n in seen.items() if key.startswith("layout.")}
    assert seen["agree"] + sum(refused.values()) >= N_EXAMPLES
    assert seen["agree"] > N_EXAMPLES / 2
    # each kind of refusal was really met
    assert set(refused) == {
        "layout.duplicate_spec_axis",
        "layout.indivisible",
        "layout.spec_too_long",
        "layout.unknown_axis",
    }
