"""A misspelled word gets the right one as a suggestion, never itself."""

from __future__ import annotations

import pytest

from shardlab.planner.rules.lint import suggest_pattern_fix

PATHS = ["model.layers.*.mlp.up_proj.weight", "model.embed_tokens.weight", "lm_head.weight"]


@pytest.mark.parametrize(
    ("pattern", "right", "typo"),
    [
        ("mlp/up_porj", "up_proj", "up_porj"),
        ("mlp.Up_Proj.weight", "up_proj", "Up_Proj"),
        ("layer.mlp", "layers", "layer"),
        ("embed_token$", "embed_tokens", "embed_token"),
    ],
)
def test_the_right_name_is_suggested(pattern, right, typo):
    assert suggest_pattern_fix(pattern, PATHS) == f"Did you mean {right!r} instead of {typo!r}?"
