"""A problem's texts as HTML: statement, hints, code.

A catalogue is a text of anybody. So raw HTML stays text, links lead to http and https only, images
are not loaded, and every block that shardlab draws itself is drawn from parsed values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers.python import PythonConsoleLexer, PythonLexer

from shardlab._text.printable import printable_lines
from shardlab.course.devices_block import DevicesBlock, parse_devices_block
from shardlab.course.formula import formula_mathml
from shardlab.course.prediction import Prediction, parse_prediction
from shardlab.course.statement_text import parse_layout_line
from shardlab.errors import LabError
from shardlab.sharding.layout import Layout

# ([name](wrong/name.py)): the wrong submission of a pitfall is for the audit, not for learners.
# Searched in one pass: no space begins a second search, and no label or name goes on without end.
_WRONG_LINK = re.compile(r"(?<!\s)\s*\(?\[[^\[\]]{0,200}\]\(wrong/[^()]{0,200}\)\)?")
_WEB_LINK = re.compile(r"https?://[^\s]+", re.IGNORECASE)
# A name of a file or an anchor: no scheme, no host, no way out of the folder.
_RELATIVE_LINK = re.compile(r"#?[\w-][\w./#-]*")
_MAX_LAYOUTS = 12  # of one block; each is a request


@dataclass(frozen=True, kw_only=True)
class PredictionBlock:
    """A question of a statement, in its place between two pieces of HTML."""

    number: int  # on its page, from 1
    prediction: Prediction
    question_html: Markup
    choices_html: tuple[Markup, ...]
    why_html: Markup


@dataclass(frozen=True, kw_only=True)
class StatementHtml:
    """A statement as a sequence of HTML and questions."""

    blocks: tuple[Markup | PredictionBlock, ...]
    pictures: tuple[Layout | DevicesBlock, ...]  # images with addresses of their own

    @property
    def predictions(self) -> tuple[PredictionBlock, ...]:
        return tuple(block for block in self.blocks if isinstance(block, PredictionBlock))


@lru_cache(maxsize=256)
def render_statement(statement: str, picture_url: str) -> StatementHtml:
    """Return a statement without its title, which the page shows itself.

    Picture n, of a `layout` or `devices` block, has the address `picture_url` with n for `{n}`.
    """
    text = _WRONG_LINK.sub("", printable_lines(statement.expandtabs(4)))
    text = re.sub(r"\A# .*\n", "", text)
    context: dict[str, Any] = {"pictures": [], "predictions": [], "picture_url": picture_url}
    html = _markdown().render(text, context)
    # The fence rule leaves a mark where a question belongs: a form is the template's affair.
    pieces = re.split(r"<!--predict (\d+)-->\n?", html)
    blocks: list[Markup | PredictionBlock] = []
    for index, piece in enumerate(pieces):
        if index % 2:
            blocks.append(_prediction_block(context["predictions"][int(piece) - 1], int(piece)))
        elif piece.strip():
            blocks.append(Markup(piece))
    return StatementHtml(blocks=tuple(blocks), pictures=tuple(context["pictures"]))


@lru_cache(maxsize=512)
def render_markdown(text: str) -> Markup:
    """Return a short text of a catalogue, such as a hint, as HTML."""
    text = _WRONG_LINK.sub("", printable_lines(text))
    context: dict[str, Any] = {"pictures": [], "predictions": [], "picture_url": ""}
    html = _markdown().render(text, context)
    return Markup(re.sub(r"<!--predict \d+-->\n?", "", html))


def highlight_python(source: str) -> Markup:
    """Return Python source as HTML with a class for each kind of token."""
    return Markup(_highlight(printable_lines(source), "python"))


def highlight_python_lines(source: str) -> tuple[Markup, ...]:
    """Return the lines of Python source as HTML; no element spans two of them."""
    formatter = HtmlFormatter(nowrap=True)
    code = highlight(printable_lines(source), PythonLexer(stripnl=False), formatter)
    return tuple(Markup(line) for line in code.rstrip("\n").split("\n"))


@lru_cache(maxsize=256)
def highlight_catalogue_python(source: str) -> Markup:
    """Return a source of the catalogue as HTML; what people write themselves is not cached."""
    return highlight_python(source)


def parse_pictures(statement: str) -> tuple[Layout | DevicesBlock, ...]:
    """Return what the pictures of a statement show, in order."""
    return render_statement(statement, "").pictures


def _prediction_block(prediction: Prediction, number: int) -> PredictionBlock:
    return PredictionBlock(
        number=number,
        prediction=prediction,
        question_html=_inline(prediction.question),
        choices_html=tuple(map(_inline, prediction.choices)),
        why_html=_inline(prediction.why),
    )


def _inline(text: str) -> Markup:
    return Markup(_markdown().renderInline(text, {}))


def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "linkify": False})
    markdown.enable("table").disable(["html_block", "html_inline", "image", "autolink"])
    markdown.validateLink = _is_allowed_link  # type: ignore[method-assign]
    markdown.add_render_rule("fence", _render_fence)
    markdown.add_render_rule("link_open", _render_link)
    table_start = '<div class="table-scroll" tabindex="0"><table>\n'
    markdown.add_render_rule("table_open", lambda *_: table_start)
    markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")
    markdown.add_render_rule("heading_open", _render_heading)
    return markdown


def _is_allowed_link(url: str) -> bool:
    return bool(_WEB_LINK.fullmatch(url) or _RELATIVE_LINK.fullmatch(url))


def _render_link(
    renderer: RendererHTML,
    tokens: Sequence[Token],
    index: int,
    options: Mapping[str, Any],
    context: dict[str, Any],
) -> str:
    token = tokens[index]
    if str(token.attrGet("href") or "").lower().startswith("http"):
        token.attrSet("rel", "noopener noreferrer")
    return renderer.renderToken(tokens, index, options, context)  # type: ignore[arg-type]


def _render_heading(
    renderer: RendererHTML,
    tokens: Sequence[Token],
    index: int,
    options: Mapping[str, Any],
    context: dict[str, Any],
) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", tokens[index + 1].content.lower()).strip("-")
    # The prefix keeps the names of the page's own elements free.
    return f'<{tokens[index].tag} id="s-{escape(name)}">'


def _render_fence(
    renderer: RendererHTML,
    tokens: Sequence[Token],
    index: int,
    options: Mapping[str, Any],
    context: dict[str, Any],
) -> str:
    language, text = tokens[index].info.strip(), tokens[index].content
    try:
        if language == "predict":
            context["predictions"].append(parse_prediction(text))
            return f"<!--predict {len(context['predictions'])}-->\n"
        if language == "math":
            formulas = [formula_mathml(line) for line in text.splitlines() if line.strip()]
            return f'<div class="formulas">{"".join(formulas)}</div>\n'
        if language == "layout":
            return _render_layouts(text, context)
        if language == "devices":
            return _render_devices(text, context)
    except (ValueError, LabError):
        # Somebody's catalogue that was not audited: its source is better than an error page.
        return f"<pre><code>{escape(text)}</code></pre>\n"
    if language in ("python", "pycon"):
        return _highlight(text, language)
    css_class = f' class="drawing columns-{_column_step(text)}"' if language == "text" else ""
    return f'<pre{css_class} tabindex="0"><code>{escape(text)}</code></pre>\n'


def _column_step(text: str) -> int:
    """Return the columns of a drawing, rounded up to a step that the style sheet has."""
    n_columns = max(map(len, text.splitlines()), default=0)
    return min(max(-(-n_columns // 5) * 5, 70), 120)


def _render_layouts(text: str, context: dict[str, Any]) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    # The text of a line is its description: array, spec and mesh say all that is drawn.
    images = [
        _render_image(parse_layout_line(line), f"Layout of {line.strip()}", context)
        for line in lines[:_MAX_LAYOUTS]
    ]
    return f'<figure class="layout-picture">{"".join(images)}</figure>\n'


def _render_devices(text: str, context: dict[str, Any]) -> str:
    block = parse_devices_block(text)
    image = _render_image(block, block.alternative, context)
    return f'<figure class="devices-picture">{image}</figure>\n'


def _render_image(picture: Layout | DevicesBlock, description: str, context: dict[str, Any]) -> str:
    context["pictures"].append(picture)
    url = escape(context["picture_url"].format(n=len(context["pictures"])))
    image = f'<img src="{url}" alt="{escape(description)}" loading="lazy">'
    return f'<a href="{url}" title="Open the picture alone">{image}</a>'


def _highlight(source: str, language: str) -> str:
    lexer = PythonConsoleLexer() if language == "pycon" else PythonLexer()
    # Classes, not styles: the Content-Security-Policy allows no inline style.
    code = highlight(source, lexer, HtmlFormatter(nowrap=True))
    return f'<pre class="code" tabindex="0"><code>{code}</code></pre>\n'
