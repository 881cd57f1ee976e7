"""JAX is the reference: random programs on real devices, and simulated.

Hypothesis only generates the descriptions, always the same ones, so that the other process can work
ahead while this one simulates. `SHARDLAB_ORACLE_EXAMPLES=1000` runs more programs, and another
`SHARDLAB_ORACLE_SEED` runs others.
"""

from __future__ import annotations

import json
import os

import pytest
from generated import COLLECTIVE, LOCAL, NESTING, build_program
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from program import compare
from runtimes import simulate_program

pytestmark = pytest.mark.xdist_group("oracle")

N_EXAMPLES = int(os.environ.get("SHARDLAB_ORACLE_EXAMPLES", "80"))
SEED = int(os.environ.get("SHARDLAB_ORACLE_SEED", "8"))

MESHES = [
    {"a": 8},
    {"a": 2, "b": 4},
    {"a": 4, "b": 2},
    {"a": 2, "b": 3},
    {"a": 2, "b": 2, "c": 2},
    {"a": 2, "b": 1, "c": 3},
    {"a": 3},
]
DTYPES = ["float32", "float32", "float32", "int32", "uint8", "bfloat16"]

number = st.integers(0, 23)
simple = st.tuples(st.sampled_from(COLLECTIVE + LOCAL), number, number, number)
nesting = st.tuples(
    st.sampled_from(NESTING), number, number, st.lists(simple, min_size=1, max_size=3)
)
operation = st.one_of(simple, simple, simple, simple, nesting)


@st.composite
def inputs(draw, mesh):
    local = draw(st.lists(st.sampled_from([1, 2, 3, 4]), max_size=3))
    spec: list[list[str]] = [[] for _ in local]
    for name in draw(st.permutations(list(mesh))):
        if local and draw(st.booleans()):
            spec[draw(st.integers(0, len(local) - 1))].append(name)
    return {"local": local, "spec": spec, "dtype": draw(st.sampled_from(DTYPES))}


@st.composite
def descriptions(draw):
    mesh = draw(st.sampled_from(MESHES))
    return {
        "mesh": mesh,
        "vma": draw(st.booleans()),
        "nested": draw(st.sampled_from([0, 0, 0, 1, 2])),
        "inputs": draw(st.lists(inputs(mesh), min_size=1, max_size=3)),
        "ops": draw(st.lists(operation, min_size=3, max_size=8)),
    }


def examples(n_examples):
    """Return descriptions, the same in every run."""
    texts: dict[str, None] = {}

    @seed(SEED)
    @settings(
        max_examples=n_examples,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(descriptions())
    def collect(description):
        texts[json.dumps(description)] = None

    collect()
    return list(texts)


N_IN_MAKE_TEST = 30  # the rest of the search is for `make test-all`
REQUESTS = [
    pytest.param(
        {"generated": json.loads(text)}, marks=[pytest.mark.long] if index >= N_IN_MAKE_TEST else []
    )
    for index, text in enumerate(examples(N_EXAMPLES))
]


@pytest.mark.parametrize("program_request", REQUESTS, ids=range(len(REQUESTS)))
def test_simulated_and_real_devices_agree(program_request, real_devices):
    simulated = simulate_program(build_program(program_request["generated"]))
    compare(real_devices.get_result(program_request), simulated)
