"""Primitives that only wrap a jaxpr (jit, remat, custom derivatives): they are evaluated inline."""

from __future__ import annotations

from typing import Any

# The parameter that holds the jaxpr, under every name that a primitive has had since JAX 0.10.
# Differentiation is over by now, so a function with a custom rule is its primal function.
_BODY_PARAM = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_vmap_call": "call",
    "custom_partitioning": "call",
    "linear_call": "callee",
    "run_scoped": "jaxpr",
    "eval_jaxpr": "jaxpr",  # call_jaxpr from JAX 0.12
    "program_order": "call_jaxpr",
    "composite": "jaxpr",
}


def called_jaxpr(name: str, params: dict[str, Any]) -> Any | None:
    """Return the jaxpr that a call-like primitive runs, or None for any other primitive."""
    key = _BODY_PARAM.get(name)
    if key is None:
        return None
    body = params.get(key, params.get("call_jaxpr"))
    # Some of these parameters hold a plain function in one JAX version and a jaxpr in another.
    return body if hasattr(body, "eqns") or hasattr(body, "jaxpr") else None
