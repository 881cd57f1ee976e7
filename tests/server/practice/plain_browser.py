"""A browser that runs no script, and submissions as the terminal stores them."""

from __future__ import annotations

import re
from pathlib import Path

from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict

PROBLEMS = Path(__file__).parents[3] / "src" / "shardlab" / "catalogue" / "problems"


class PlainBrowser:
    """Reads pages and sends forms as a browser does that runs no script."""

    def __init__(self, client) -> None:
        self.client = client

    def get(self, path, **options):
        return self.client.get(path, **options)

    def read(self, path):
        response = self.client.get(path)
        assert response.status_code == 200, f"{path}: {response.status_code}"
        return response.text

    def post(self, path, fields=None, *, page="/practice", follow=True):
        """Send a form with the token of a page that was loaded before."""
        token = re.search(r'name="csrf-token" content="(\w+)"', self.read(page))[1]
        data = {"csrf_token": token, **(fields or {})}
        return self.client.post(path, data=data, follow_redirects=follow)


def make_judgement(code="AC", *, problem="shard-map-psum", kind="submit", what="As it should be."):
    case = CaseResult(
        name="data=2",
        part=2,
        mesh="data=2",
        seed=7,
        verdicts=(Verdict(code=code, what=what),),
        number=1,
    )
    return Judgement(
        problem=problem, content_version=2, level="C", seed=5, kind=kind, cases=(case,)
    )


def add_submission(store, code="", *, slug="shard-map-psum", source=b"x = 1\n", kind="submit"):
    """Store a submission as the terminal does, judged if a code is given."""
    number = store.add_submission(slug, 2, source, kind=kind, seed=5)
    if code:
        store.save_judgement(number, make_judgement(code, problem=slug, kind=kind))
    return number
