"""The rules of a plan as a table, with how many tensors each has taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shardlab.records.plan import Plan
from shardlab.records.rule_line import RuleLine
from shardlab.render.plain import plain
from shardlab.render.sheet import Column, Row, Section, Table

_MOST = 200  # rules that are listed: specs by path may be as many as tensors
_MISFIT = ", which does not fit"


def rules_section(plan: Plan) -> Section:
    """Return the rules that a strategy stands for, or those given with what each has taken."""
    if plan.rules and all(row.rule.startswith("strategy ") for row in plan.rows):
        columns: tuple[Column, ...] = (_column("pattern"), _column("spec"))
        rows = [Row((plain(rule.pattern), plain(rule.spec_text))) for rule in plan.rules]
        title = "Rules that the strategy stands for; the first that is found in a path counts"
    else:
        columns = (_column("for"), _column("spec"), Column("tensors", True))
        rows = list(_given(plan))
        title = "Rules in the order in which they count, and the tensors that each took"
    more = (f"and {len(rows) - _MOST:,} more; --rules-to writes them all",)
    return Section(title, Table(columns, tuple(rows[:_MOST])), more * (len(rows) > _MOST))


def _column(head: str) -> Column:
    return Column(head, may_cut=head != "spec", is_code=True)


def _given(plan: Plan) -> Iterator[Row]:
    """Yield each rule, then what took the tensors that no single rule did."""
    taken: Counter[tuple[str, str]] = Counter()
    for row in plan.rows:
        taken[row.rule.removesuffix(_MISFIT), str(row.parameter.spec)] += row.n_tensors
    by_words: Counter[str] = Counter()
    for (words, _), n in taken.items():
        by_words[words] += n
    own = set()
    number = 0
    for line in plan.rules:
        number += line.kind == "pattern"
        words = _words(line, number)
        own.add(words)
        n_taken = "" if line.kind == "logical" else f"{by_words[words]:,}"
        name = line.pattern if line.kind == "pattern" else f"{line.kind} {line.pattern}"
        cells = tuple(map(plain, (name, line.spec_text, n_taken)))
        yield Row(cells, (plain(line.reason),) if line.reason else ())
    for (words, spec), n in taken.items():
        if words not in own:
            yield Row((plain(words), plain(spec), f"{n:,}"))


def _words(line: RuleLine, number: int) -> str:
    """Return a rule as a row of the plan calls it."""
    of = f"rule {number}:" if line.kind == "pattern" else "spec for"
    return f"{of} {line.pattern}"
