"""The loop of `learn`: the session decides, this carries it out on screen, disk and judge."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap

from shardlab._text.printable import printable_lines
from shardlab.cli import error_text
from shardlab.cli.learn_screen import Screen
from shardlab.course.background_judge import BackgroundJudge, JudgeEvent
from shardlab.course.editor import Editor
from shardlab.course.file_watch import FileWatch
from shardlab.course.learn_session import (
    ActionKind,
    LearnSession,
    Step,
    on_failure,
    on_judgement,
    on_key,
    on_open,
    on_save,
    on_unchanged_save,
)
from shardlab.course.progress_text import course_lines
from shardlab.course.solution_file import read_solution_file
from shardlab.course.statement_text import statement_lines
from shardlab.course.workbook import Workbook
from shardlab.errors import LabError, SolutionFileMissing
from shardlab.judge.judgement import Judgement
from shardlab.judge.judgement_text import judgement_lines
from shardlab.render.terminal import Line, Span
from shardlab.sandbox.process import Level

# Between two polls of the file. A save is noticed at the second poll that finds it stable.
_POLL_SECONDS = 0.1
_NO_BREAK = "\N{NO-BREAK SPACE}"  # keeps a key and its label on one line

KEYS = {
    "h": "hint",
    "r": "run",
    "s": "submit",
    "t": "task",
    "e": "edit",
    "l": "list",
    "n": "next",
    "x": "reset",
    "o": "solution",
    "q": "quit",
    "?": "help",
}
_HELP = """
Save your solution file to have it judged: on the examples first, and if they pass, on all cases.

- `h` show the next hint; each one reveals a little more
- `r` judge the file on the examples now
- `s` judge the file on all cases now, and submit it
- `t` show the task again
- `Space` show more of a text that is longer than the screen
- `e` open the file in your editor ($VISUAL, $EDITOR), in this terminal if it has no window
- `l` list all problems; type a number, or a part of a name, to go to one
- `n` go to the next problem that is not solved
- `x` restore the starter; a backup of your file is saved beside it
- `o` show the reference solution: after a pass, or at the second request
- `q` quit; your progress is saved, and `shardlab learn` continues from here
"""


class LearnLoop:
    """One run of `shardlab learn`."""

    def __init__(
        self, workbook: Workbook, screen: Screen, folder: Path | None, level: Level | None
    ) -> None:
        self.screen = screen
        self._workbook = workbook
        self._folder = folder
        self._editor = Editor.from_environment()
        self._session = LearnSession()
        self._judgement: Judgement | None = None
        self._n_judged_cases = 0
        self._is_over = False
        self._unread_lines: list[Line] = []  # of a page that is longer than the screen
        self._judge = BackgroundJudge(
            workbook.store, lambda: workbook.open_sandboxes(level), screen.wake
        )
        self._handlers: dict[ActionKind, Callable[[str], None]] = {
            "judge": self._start_judging,
            "cancel": lambda _: self._judge.cancel(),
            "show": lambda _: self._show_judgement(),
            "examples_passed": lambda _: self._report_examples(),
            "solved": lambda _: self._report_solved(),
            "task": lambda _: self._show_task(),
            "hint": lambda _: self._show_hint(),
            "solution": lambda _: self._show_solution(),
            "list": lambda _: self._show_list(),
            "help": lambda _: self._show_page(_HELP),
            "keys": lambda _: self._show_keys(),
            "more": lambda _: self._show_more(),
            "next": lambda _: self._open_next(),
            "open": self._open_problem,
            "edit": lambda _: self._open_editor(),
            "reset": lambda _: self._reset_file(),
            "print": screen.print_text,
            "prompt": self._show_prompt,
            "quit": lambda _: self._quit(),
        }

    def open_first(self, name: str | None) -> None:
        """Open the named problem, or continue where the user was."""
        if name is None:
            current = self._workbook.current_slug()
            is_solved = self._workbook.store.progress_of(current).is_solved
            name = (self._workbook.next_slug(after=current) if is_solved else current) or current
            if self._workbook.next_slug() is None:
                self.screen.print_text(
                    "All problems are solved. l lists them, to open one again.\n"
                )
        self._open_problem(name)

    def run(self) -> None:
        """Handle keys, saves and judgements as they arrive, until the user quits."""
        while not (self._is_over or self.screen.is_closed):
            for key in self.screen.read_keys(_POLL_SECONDS):
                self._carry_out(on_key(self._session, key))
            for event in self._judge.take_events():
                self._handle_event(event)
            if self._watch.has_changed():
                self._carry_out(on_save(self._session))
            elif self._watch.was_saved_unchanged:
                self._carry_out(on_unchanged_save(self._session))
            # Reported once; the loop goes on, because a save creates the file again.
            elif self._watch.was_deleted:
                self.screen.print_text(error_text(self._file_deleted()))

    def say_goodbye(self) -> None:
        """Tell the user that nothing is lost, and how to continue."""
        self.screen.print_text("Your progress is saved. `shardlab learn` continues from here.")

    def close(self) -> None:
        self._judge.close()

    def _carry_out(self, step: Step) -> None:
        self._session, actions = step
        for action in actions:
            try:
                self._handlers[action.kind](action.value)
            # An error of one action, such as a full disk, must not end the session.
            except LabError as error:
                self.screen.print_text(error_text(error))
                self._session = LearnSession(is_solved=self._session.is_solved)

    def _handle_event(self, event: JudgeEvent) -> None:
        if event.case is not None:
            self._n_judged_cases += 1
            self.screen.show_status(
                f"{self._session.judging}: {self._n_judged_cases} judged, {event.case.name}"
            )
        elif event.judgement is not None:
            self._judgement = event.judgement
            self._carry_out(on_judgement(self._session, passed=event.judgement.passed))
        else:
            self._carry_out(on_failure(self._session, printable_lines(event.failure)))

    # --------------------------------------------------------------------------------- problems

    def _open_problem(self, name: str) -> None:
        problem = self._workbook.find_problem(name.strip())
        path, is_new = self._workbook.resume_problem(problem, self._folder)
        self._problem, self._path, self._watch = problem, path, FileWatch(path)
        self._folder = path.parent
        is_solved = self._workbook.store.progress_of(problem.slug).is_solved
        self._show_task()
        self._carry_out(on_open(self._session, is_solved=is_solved))
        # An editor for the terminal would hide the task that was just printed.
        if self._editor and self._editor.has_window:
            self._editor.open_in_background(path)
        starter = problem.read_text("starter.py").encode()
        if is_new or is_solved or read_solution_file(path, problem.slug) == starter:
            # The rest of the task comes before the keys.
            if not self._unread_lines:
                self._show_keys()
        else:
            self._carry_out(on_save(self._session))  # work from last time

    def _open_next(self) -> None:
        next_slug = self._workbook.next_slug(after=self._problem.slug)
        if next_slug is None:
            self.screen.print_text("All problems are solved. l lists them.")
        elif next_slug == self._problem.slug:
            self.screen.print_text("This is the last problem that is not solved.")
        else:
            self._open_problem(next_slug)

    # ---------------------------------------------------------------------------------- judging

    def _start_judging(self, kind: str) -> None:
        if not self._path.exists():
            raise self._file_deleted()
        source = read_solution_file(self._path, self._problem.slug)
        self._n_judged_cases = 0
        self.screen.show_status(f"{kind}: judging ...")
        self._judge.start_judging(self._problem, source, kind)

    def _file_deleted(self) -> SolutionFileMissing:
        return SolutionFileMissing(
            "Your solution file was deleted.",
            where=str(self._path),
            fix="save it again in your editor, or press x twice for the starter.",
        )

    def _show_judgement(self) -> None:
        judgement = self._judgement
        assert judgement
        self.screen.show_lines(lambda width: _separator_lines(judgement.kind, width))
        self.screen.show_lines(lambda width: judgement_lines(judgement, width))
        self.screen.print_text("")

    def _report_examples(self) -> None:
        self.screen.print_text(f"The examples pass ({self._n_judged_cases} cases). Now all cases:")

    def _report_solved(self) -> None:
        next_slug = self._workbook.next_slug(after=self._problem.slug)
        next_step = f"n opens {next_slug}." if next_slug else "All problems are solved."
        self.screen.print_text(f"Solved. {next_step} o shows the reference solution.")
        self._show_keys()

    # ------------------------------------------------------------------------------------ texts

    def _show_task(self) -> None:
        slug, slugs = self._problem.slug, self._workbook.catalogue.slugs
        track = self._workbook.catalogue.track_of(slug).title
        number = slugs.index(slug) + 1
        self.screen.print_text(f"\n{track}: problem {number} of {len(slugs)}, {slug}")
        # On one line, so that a terminal can make it a link.
        self.screen.show_lines(lambda width: [[Span(text=f"Your solution file: {self._path}")]])
        if self._editor is None:
            self.screen.print_text("Open it in your editor, or set $VISUAL or $EDITOR.")
        elif self._editor.has_window:
            self.screen.print_text(f"It opens in {self._editor.name}; e opens it again.")
        else:
            self.screen.print_text(
                f"e opens it here in {self._editor.name}; or use another window."
            )
        self.screen.print_text("Save it to have it judged.\n")
        # Last, so that a page longer than the screen begins on it.
        self._show_page(self._problem.page, n_rows_above=6)

    def _show_hint(self) -> None:
        hint = self._workbook.next_hint(self._problem)
        if hint is None:
            self.screen.print_text("This problem has no hints.")
            return
        end = "\n\nThis is the last hint; o shows the solution." if hint.is_last else ""
        self.screen.print_text("")
        self._show_page(f"## Hint {hint.number} of {hint.total}\n\n{hint.text}{end}")

    def _show_solution(self) -> None:
        text = self._workbook.request_solution(self._problem)
        if text is None:
            self.screen.print_text(
                "Not solved yet. Press o again to see the solution, or h for a hint."
            )
            return
        self.screen.print_text("")
        self._show_page(f"## Reference solution\n\n```python\n{text}\n```")

    def _show_list(self) -> None:
        width = shutil.get_terminal_size().columns
        self._unread_lines = list(course_lines(self._workbook.list_progress(), width))
        self._show_more(n_rows_above=1)
        self.screen.print_text(
            "Type a number, or a part of a name, and Enter; Enter alone goes back."
        )

    def _show_prompt(self, typed: str) -> None:
        more = f"Space: {len(self._unread_lines)} more lines. " if self._unread_lines else ""
        self.screen.show_status(f"{'' if typed else more}Go to (number or name, Enter): {typed}")

    def _show_page(self, text: str, n_rows_above: int = 0) -> None:
        """Show the first screen of a text; Space shows the next one."""
        width = shutil.get_terminal_size().columns
        self._unread_lines = list(statement_lines(text, width))
        self._show_more(n_rows_above)

    def _show_more(self, n_rows_above: int = 0) -> None:
        if not self._unread_lines:
            self._show_keys()
            return
        n_lines = len(self._unread_lines)
        if (height := self.screen.page_height) is not None:
            n_lines = _count_fitting(self._unread_lines, max(height - n_rows_above, 6))
        lines, self._unread_lines = self._unread_lines[:n_lines], self._unread_lines[n_lines:]
        self.screen.show_lines(lambda width: lines)
        if not self._unread_lines:
            self.screen.print_text("")
        self._announce_more()

    def _announce_more(self) -> None:
        if self._unread_lines:
            self.screen.show_status(f"Space: {len(self._unread_lines)} more lines. ?: keys.")

    def _show_keys(self) -> None:
        self.screen.show_lines(_key_lines)
        self._announce_more()

    # ------------------------------------------------------------------------------------ files

    def _open_editor(self) -> None:
        if self._editor is None:
            message = f"Set $VISUAL or $EDITOR to your editor, or open {self._path} in it."
            self.screen.print_text(message)
        elif self._editor.has_window:
            self._editor.open_in_background(self._path)
        else:
            with self.screen.lend_terminal():
                has_started = self._editor.open_in_terminal(self._path)
            if not has_started:
                self.screen.print_text(f"{self._editor.name} could not be started: {self._path}")

    def _reset_file(self) -> None:
        _, backup = self._workbook.start_problem(self._problem, self._path.parent, force=True)
        self._watch = FileWatch(self._path)  # writing the starter is not a save
        note = f" Your file was saved as {backup.name}." if backup else ""
        self.screen.print_text(f"{self._path.name} is the starter again.{note}")

    def _quit(self) -> None:
        self.say_goodbye()
        self._is_over = True


def _separator_lines(kind: str, width: int) -> list[Line]:
    """Return an empty line and a rule, which separate two judgements."""
    return [[], [Span(text=f"-- {kind} ".ljust(min(width, 60), "-"), is_faint=True)]]


def _count_fitting(lines: Sequence[Line], n_rows: int) -> int:
    """Return how many lines fit in a number of rows: code that is too wide takes several."""
    width = max(shutil.get_terminal_size().columns, 1)
    for position, line in enumerate(lines):
        n_rows -= max(math.ceil(sum(len(span.text) for span in line) / width), 1)
        if n_rows < 0:
            return max(position, 1)
    return len(lines)


def _key_lines(width: int) -> Iterator[Line]:
    keys = "  ".join(f"{key}{_NO_BREAK}{label}" for key, label in KEYS.items())
    for line in wrap(keys, max(width, 12)):
        yield [Span(text=line.replace(_NO_BREAK, " "), is_faint=True)]
