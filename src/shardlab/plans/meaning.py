"""What the array axes of a tensor mean, told from the names that public checkpoints use.

>>> meaning_of("model.layers.*.mlp.down_proj.weight", (4096, 14336))
('embed', 'mlp')

Strategies go by meaning. Shapes are torch's, [out, in]; a name that nobody knows has no meaning.
"""

from __future__ import annotations

import re

from shardlab.plans.tensor import Axes

# the end of a path -> logical names of its array axes; the first that fits counts
_MEANINGS: tuple[tuple[re.Pattern[str], Axes], ...] = tuple(
    (re.compile(rf"(?:^|[./_]){pattern}$"), axes)
    for pattern, axes in (
        (r"(?:embed_tokens|shared_head\.head|lm_head)\.weight", ("vocab", "embed")),
        (r"q_proj\.weight", ("heads", "embed")),
        (r"(?:k|v)_proj\.weight", ("kv_heads", "embed")),
        (r"(?:o|out)_proj\.weight", ("embed", "heads")),
        (r"(?:gate_proj|up_proj|w1|w3|fc1)\.weight", ("mlp", "embed")),
        (r"(?:down_proj|w2|fc2)\.weight", ("embed", "mlp")),
    )
)


def meaning_of(name: str, shape: tuple[int, ...]) -> Axes | None:
    """Return the logical axis names of a tensor by its name; None where it is not known."""
    for pattern, axes in _MEANINGS:
        if len(axes) == len(shape) and pattern.search(name):
            return axes
    return None
