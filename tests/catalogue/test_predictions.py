"""Every question of a page has the answer that JAX gives on 8 host devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab.catalogue.tracks import load_catalogue
from shardlab.course.prediction import Prediction, parse_prediction
from shardlab.course.statement_page import parse_page

CATALOGUE = load_catalogue()


@pytest.fixture(scope="module")
def answers():
    """Return the computed answers by slug, from a process that has 8 devices."""
    script = Path(__file__).parent / "prediction_answers.py"
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, str(script)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(process.stdout)


def predictions(slug: str) -> tuple[Prediction, ...]:
    page = parse_page(CATALOGUE.load_problem(slug).read_text("statement.md"))
    blocks = (block for section in page.sections for block in section.blocks)
    return tuple(parse_prediction(b.text) for b in blocks if b.language == "predict")


@pytest.mark.parametrize("slug", CATALOGUE.slugs)
def test_a_question_has_the_answer_that_jax_gives(slug, answers):
    # A page without a computed answer has no question, so that no answer is unproven.
    assert [prediction.answer for prediction in predictions(slug)] == (
        [answers[slug]] if slug in answers else []
    )
