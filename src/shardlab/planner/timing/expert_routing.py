"""How many copies of a token its experts need, if they are on several nodes.

An all-to-all sends a token once to each of its `top_k` experts. Dispatchers for several nodes
(DeepEP, HybridEP) send it once to each node that has one of them, and copy it there over NVLink.
Models with node-limited routing also choose experts of few groups, and put a group on each node:
DeepSeek-V3 has 8 groups and uses 4 of them for a token (arXiv 2412.19437, section 2.1.2).

>>> from shardlab.planner.models.presets import load_preset
>>> deepseek, qwen = (load_preset(name).architecture for name in ("deepseek-v3", "qwen3-235b-a22b"))
>>> [round(copies_of_token(arch, 1), 1) for arch in (deepseek, qwen)]
[8, 8]
>>> [round(copies_of_token(arch, 8), 1) for arch in (deepseek, qwen)]
[4.0, 5.3]
"""

from __future__ import annotations

from math import comb

from shardlab.planner.model import Architecture


def copies_of_token(arch: Architecture, n_nodes: int) -> float:
    """Return how often a token is sent to experts on `n_nodes` nodes; routing is balanced."""
    if n_nodes <= 1:
        return arch.top_k
    n_groups, n_chosen = arch.expert_groups, arch.top_groups
    if not 0 < n_chosen < n_groups:
        return _nodes_hit(n_nodes, arch.top_k)
    if n_nodes >= n_groups:  # a group is on one or several nodes
        return n_chosen * _nodes_hit(n_nodes / n_groups, arch.top_k / n_chosen)
    on_node = n_groups // n_nodes
    # each node that has one of the chosen groups
    return n_nodes * (1 - comb(n_groups - on_node, n_chosen) / comb(n_groups, n_chosen))


def _nodes_hit(n_nodes: float, n_experts: float) -> float:
    """Return the expected number of different nodes of independently chosen experts."""
    return n_nodes * (1.0 - float((1 - 1 / n_nodes) ** n_experts))
