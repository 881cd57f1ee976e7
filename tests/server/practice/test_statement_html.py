"""Statements as HTML: every page of the catalogue, and pages of somebody who means harm."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from shardlab.catalogue.tracks import load_catalogue
from shardlab.server.practice.statement_html import (
    render_markdown,
    render_statement,
)

CATALOGUE = load_catalogue()


class Elements(HTMLParser):
    """Collects the elements of a text with their attributes."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def statement_html(text):
    return "".join(
        str(block)
        for block in render_statement(text, "/p/{n}.svg").blocks
        if isinstance(block, str)
    )


@pytest.mark.parametrize("slug", CATALOGUE.slugs)
def test_every_statement_has_its_sections_and_nothing_for_the_audit(slug):
    problem = CATALOGUE.load_problem(slug)
    html = statement_html(problem.page)
    assert re.findall(r"<h2 [^>]*>([^<]*)<", html) == [
        "Why this matters",
        "The idea",
        "Worked example",
        "Pitfalls",
        "The task",
        "Inputs and output",
        "Examples",
    ]
    assert "wrong/" not in html
    assert "```" not in html
    assert "<h1" not in html  # the page shows the title
    assert not re.search(r'\sstyle="', html)  # the Content-Security-Policy allows none


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)></svg>",
    "[click](javascript:alert(1))",
    "[click](JaVaScRiPt:alert(1))",
    "[click](data:text/html,<script>alert(1)</script>)",
    "[click](vbscript:x)",
    "[click](//evil.example/x)",
    "[click](../../admin)",
    "[click](&#106;avascript:alert(1))",
    "![x](https://evil.example/pixel.png)",
    "<https://evil.example>",
    '<a href="https://evil.example" hx-get="/admin" hx-trigger="load">x</a>',
    "```layout\nf32[8] P('data') data=3\n```",
    "```layout\nf32[" + "9" * 400 + "] P() data=2\n```",
    '```devices\nmesh x=2\n<script>a</script>: <img src=x onerror=alert(1)> | "><b>\n```',
    "```devices\nmesh x=" + "9" * 400 + "\na: 1\n```",
    "```devices\nmesh x=2\n" + "a: 1\n" * 5000 + "```",
    "```math\n__import__('os').system('x')\n```",
    "```math\n" + "(" * 80 + "x" + ")" * 80 + "\n```",
    "```predict\n<b onclick=alert(1)>Q</b>\n(x) <script>a</script>\n( ) b\nwhy: <img src=x>\n```",
    "```python\n</code></pre><script>alert(1)</script>\n```",
    '```"><script>alert(1)</script>\nx\n```',
    "a\x1b[31m\u202eb",
    "# " + "x" * 5000,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_statement_becomes_text(text):
    statement = render_statement(f"# T\n\n{text}\n", "/p/{n}.svg")
    html = "".join(str(getattr(b, "question_html", b)) for b in statement.blocks)
    for block in statement.predictions:
        html += "".join(map(str, (*block.choices_html, block.why_html)))
    for tag, attributes in Elements(html).found:
        assert tag in {
            "p",
            "a",
            "pre",
            "code",
            "span",
            "em",
            "strong",
            "h1",
            "h2",
            "figure",
            "img",
            "div",
            "math",
        } or (tag.startswith("m"))
        assert not any(
            name.startswith(("on", "hx-", "style", "src")) for name in attributes if tag != "img"
        )
        if tag == "a":
            assert re.match(r"https?://evil\.example/|#|/p/\d", attributes["href"])
        if tag == "img":
            assert attributes["src"].startswith("/p/")
    assert "\x1b" not in html
    assert "\u202e" not in html


def test_links_to_the_web_tell_nothing_about_the_page():
    html = statement_html("[JAX](https://docs.jax.dev/x)")
    assert 'rel="noopener noreferrer"' in html


def test_a_hint_is_markdown_without_the_link_for_the_audit():
    assert (
        str(render_markdown("Use `psum` ([a](wrong/a.py)).")) == "<p>Use <code>psum</code>.</p>\n"
    )


def test_pictures_formulas_and_questions_stand_where_they_are_written():
    text = (
        "# T\n\nbefore\n\n```layout\nf32[8] P('data') data=2\n```\n\n```math\ny = x / n\n```\n\n"
        "```predict\nHow?\n(x) so\n( ) not so\nwhy: because.\n```\n\nafter\n"
    )
    statement = render_statement(text, "/p/{n}.svg")
    first, question, last = statement.blocks
    assert '<img src="/p/1.svg" alt="Layout of f32[8] P(' in first
    assert "<mfrac>" in first
    assert question.prediction.answer == "so"
    assert last.strip() == "<p>after</p>"
    assert statement.pictures[0].shard_shape == (4,)


@pytest.mark.parametrize("text", [" ", "\t", "[", " [", "[](wrong/", "(", "[a]"])
def test_a_text_of_one_mark_is_rendered_in_one_pass(text):
    # A search for links that begins anew at each character would take minutes, and no other
    # request is served meanwhile.
    assert statement_html("x" + text * (40_000 // len(text)) + "x")


def test_links_to_wrong_submissions_are_left_out():
    html = statement_html("It hangs ([no_psum](wrong/no_psum.py)), see [a](wrong/b.py).\n")
    assert html == "<p>It hangs, see.</p>\n"
