"""Where the answer of `shardlab plan` goes: the terminal, and files of several kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardlab.cli.outputs import check_places, json_text, page, show, write_all

if TYPE_CHECKING:
    from shardlab.planner.plan import Plan
    from shardlab.planner.snapshots.plan_comparison import Comparison
    from shardlab.planner.snapshots.golden_file import GoldenFile

_FILES = ("json", "html", "svg", "treemap", "save", "rules_to")


def check_files(options: dict[str, Any]) -> None:
    """Refuse places that cannot be written to before the work."""
    check_places(**{name.replace("_", "-"): options[name] for name in _FILES})


def write(plan: Plan, before: GoldenFile | None, options: dict[str, Any]) -> bool | None:
    """Write every output that was asked for; return whether two plans are the same, if compared."""
    change = None if before is None else before.compare(plan)
    old = None if before is None else before.plan
    if not write_all(_outputs(plan, old, change, options)):
        if change is not None:
            _show_change(change, options["markdown"])
        else:
            _show(plan, options)
    return None if change is None else change.same


def _outputs(
    plan: Plan, old: Plan | None, change: Comparison | None, options: dict[str, Any]
) -> dict[str, tuple[str | None, Callable[[], str]]]:
    def as_page() -> str:
        from shardlab.planner.plan_text import plan_html
        from shardlab.planner.snapshots.plan_comparison_text import comparison_html

        first = [] if change is None else [comparison_html(change)]
        shown = plan_html(plan, show_all=options["show_all"], old=old)
        return page(f"{plan.model} on {plan.mesh_summary}", [*first, shown])

    def as_json() -> str:
        more = {} if change is None else {"comparison": change.to_json()}
        return json_text({**plan.to_json(), **more})

    def as_bars() -> str:
        from shardlab.planner.memory_bars import bars_svg

        return bars_svg(plan, old)

    def as_golden() -> str:
        from shardlab.planner.snapshots.saved_plan import canonical_text

        return canonical_text(plan)

    def as_rules() -> str:
        from shardlab.planner.rules.rules_file import rules_text
        from shardlab.planner.snapshots.golden_file import rules_of_plan

        return rules_text(rules_of_plan(plan))

    return {
        "--json": (options["json"], as_json),
        "--html": (options["html"], as_page),
        "--svg": (options["svg"], as_bars),
        "--treemap": (options["treemap"], plan.treemap),
        "--save": (options["save"], as_golden),
        "--rules-to": (options["rules_to"], as_rules),
    }


def _show(plan: Plan, options: dict[str, Any]) -> None:
    from shardlab.planner.plan_text import plan_markdown, plan_rich, plan_text

    ways = {"show_all": options["show_all"], "show_rules": options["show_rules"]}
    if options["markdown"]:
        text = plan_markdown(plan, **ways).rstrip("\n")
        show(lambda width: text, lambda width: _verbatim(text))
        return
    show(
        lambda width: plan_text(plan, width, **ways),
        lambda width: plan_rich(plan, width, **ways),
    )


def _show_change(change: Comparison, as_markdown: bool) -> None:
    from shardlab.planner.snapshots.plan_comparison_text import (
        comparison_markdown,
        comparison_rich,
        comparison_text,
    )

    if as_markdown:
        text = comparison_markdown(change).rstrip("\n")
        show(lambda width: text, lambda width: _verbatim(text))
        return
    show(
        lambda width: comparison_text(change, width),
        lambda width: comparison_rich(change, width),
    )


def _verbatim(text: str) -> Any:
    """Return text for rich to print as it is: Markdown is to be copied, not folded."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ignore")
