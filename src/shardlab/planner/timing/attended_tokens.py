"""How many tokens one token attends to: all before it, or those of a local window."""

from __future__ import annotations

from collections.abc import Iterator

from shardlab.planner.model import Architecture

_CAUSAL = 0.5  # the mean position of a token in its sequence


def attended_tokens(arch: Architecture, sequence: int) -> Iterator[tuple[int, float]]:
    """Yield numbers of layers, with the mean over the sequence of the tokens attended to there.

    >>> gemma = Architecture(layers=6, hidden=8, heads=1, kv_heads=1, head_dim=8, ffn=8, vocab=8,
    ...     window=1024, window_layers=5)
    >>> list(attended_tokens(gemma, 8192))
    [(1, 4096.0), (5, 960.0)]
    """
    for n_layers, n_cached in cached_tokens(arch, sequence):
        # Tokens at the start of the sequence see less than a full window.
        yield n_layers, n_cached * (1 - n_cached / sequence * _CAUSAL)


def cached_tokens(arch: Architecture, sequence: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of layers, with the tokens that the last token attends to there."""
    n_local = min(arch.window_layers, arch.layers) if arch.window < sequence else 0
    if arch.layers > n_local:
        yield arch.layers - n_local, sequence
    if n_local:
        yield n_local, arch.window
