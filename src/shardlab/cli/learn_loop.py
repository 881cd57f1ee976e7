"""What `learn` does: the session decides, this carries it out on screen, disk and judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import wrap

from shardlab._text.printable import printable_lines
from shardlab.cli import error_text
from shardlab.cli.course_tables import course_lines
from shardlab.cli.learn_screen import Screen
from shardlab.course import learn_session as loop
from shardlab.course.background_judge import BackgroundJudge, JudgeEvent
from shardlab.course.editor import Editor
from shardlab.course.file_watch import FileWatch
from shardlab.course.hints import next_hint, request_solution
from shardlab.course.learn_session import LearnSession
from shardlab.course.progress import next_problem
from shardlab.course.solution_file import read_solution_file
from shardlab.course.statement_text import statement_lines
from shardlab.course.workbook import Workbook
from shardlab.errors import LabError, SolutionFileMissing
from shardlab.judge.judgement import Judgement
from shardlab.judge.judgement_text import judgement_lines
from shardlab.render.terminal import Line, Span
from shardlab.sandbox.process import Level

# Between two looks at the file; a save is noticed at the second look that finds it at rest.
_PAUSE = 0.1
_FIXED = "\N{NO-BREAK SPACE}"  # a key and its word stay on one line

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
Save your file, and it is judged: on the examples first, and where they pass, on all cases.

- `h` the next hint; each gives away a little more
- `r` judge the file on the examples now
- `s` judge it on all cases now, and hand it in
- `t` show the task again
- `e` open the file in your editor ($VISUAL, $EDITOR), in this terminal if it has no window
- `l` list all problems; type a number or a name to go to one
- `n` go to the next problem that is not solved
- `x` put the starter back; your file is kept beside it
- `o` show the solution: after a pass, or when asked for twice
- `q` quit; everything is kept, and `shardlab learn` goes on from here
"""


class Lesson:
    """One sitting."""

    def __init__(
        self, book: Workbook, screen: Screen, folder: Path | None, level: Level | None
    ) -> None:
        self.screen = screen
        self._book = book
        self._folder = folder
        self._editor = Editor.of()
        self._session = LearnSession()
        self._judgement: Judgement | None = None
        self._n_judged = 0
        self._is_over = False
        self._background = BackgroundJudge(book.record, lambda: book.house(level), screen.wake)
        self._acts: dict[str, Callable[[str], None]] = {
            "judge": self._judge,
            "give_up": lambda _: self._background.give_up(),
            "show": self._show,
            "pass_on": self._pass_on,
            "solved": self._solved,
            "task": lambda _: self._task(),
            "hint": self._hint,
            "solution": self._solution,
            "list": self._list,
            "help": lambda _: self._page(_HELP),
            "keys": self._keys,
            "next": self._next,
            "open": self._go_to,
            "edit": self._edit,
            "reset": self._reset,
            "say": screen.say,
            "echo": lambda typed: screen.status(f"Go to (number or name, Enter): {typed}"),
            "quit": self._quit,
        }

    def begin(self, name: str | None) -> None:
        """Open the problem that was asked for, or go on where the person was."""
        if name is None:
            current = self._book.current()
            done = self._book.record.of(current).is_solved
            name = (self._coming(current) if done else current) or current
            if self._coming(None) is None:
                self.screen.say("All problems are solved. l lists them, to look at one again.\n")
        self._open(name)

    def go_on(self) -> None:
        """Take keys, saves and judgements as they come, until the person quits."""
        while not (self._is_over or self.screen.is_at_end):
            for pressed in self.screen.keys(_PAUSE):
                self._take(loop.key(self._session, pressed))
            for told in self._background.news():
                self._hear(told)
            if self._watch.has_changed():
                self._take(loop.saved(self._session))
            elif self._watch.is_just_gone:
                self.screen.say(error_text(self._gone()))

    def leave(self) -> None:
        """Say that nothing is lost, and how to go on."""
        self.screen.say("Everything is kept. `shardlab learn` goes on from here.")

    def close(self) -> None:
        self._background.close()

    def _take(self, step: loop.Step) -> None:
        self._session, todo = step
        for do in todo:
            try:
                self._acts[do.what](do.value)
            except LabError as error:
                self.screen.say(error_text(error))
                self._session = LearnSession(is_solved=self._session.is_solved)

    def _hear(self, told: JudgeEvent) -> None:
        if told.case is not None:
            self._n_judged += 1
            self.screen.status(
                f"{self._session.judging}: {self._n_judged} judged, {told.case.name}"
            )
        elif told.judgement is not None:
            self._judgement = told.judgement
            self._take(loop.judged(self._session, passed=told.judgement.passed))
        else:
            self._take(loop.failed(self._session, printable_lines(told.failure)))

    # --------------------------------------------------------------------------------- problems

    def _open(self, name: str) -> None:
        problem = self._book.problem(name)
        path, is_new = self._book.resume(problem, self._folder)
        self._problem, self._path, self._watch = problem, path, FileWatch(path)
        self._folder = path.parent
        done = self._book.record.of(problem.slug).is_solved
        self._task()
        self._take(loop.opened(self._session, is_solved=done))
        if self._editor and self._editor.has_window:
            self._editor.open_beside(path)
        if is_new or done or read_solution_file(path, problem.slug) == self._starter:
            self._keys("")
        else:
            self._take(loop.saved(self._session))  # work from last time

    def _go_to(self, typed: str) -> None:
        self._open(self._book.problem(typed.strip()).slug)

    def _next(self, _: str) -> None:
        coming = self._coming(self._problem.slug)
        if coming is None:
            self.screen.say("All problems are solved. l lists them.")
        elif coming == self._problem.slug:
            self.screen.say("This is the last one that is not solved.")
        else:
            self._open(coming)

    def _coming(self, after: str | None) -> str | None:
        return next_problem(self._book.catalogue, self._book.record.progress(), after)

    @property
    def _starter(self) -> bytes:
        return self._problem.text("starter.py").encode()

    # ---------------------------------------------------------------------------------- judging

    def _judge(self, kind: str) -> None:
        if not self._path.exists():
            raise self._gone()
        source = read_solution_file(self._path, self._problem.slug)
        self._n_judged = 0
        self.screen.status(f"{kind}: judging ...")
        self._background.judge(self._problem, source, kind)

    def _gone(self) -> SolutionFileMissing:
        return SolutionFileMissing(
            "Your file is gone.",
            where=str(self._path),
            fix="save it again in your editor, or press x twice for the starter.",
        )

    def _show(self, _: str) -> None:
        judgement = self._judgement
        assert judgement
        self.screen.show(lambda width: _rule(judgement.kind, width))
        self.screen.show(lambda width: judgement_lines(judgement, width))
        self.screen.say("")

    def _pass_on(self, _: str) -> None:
        self.screen.say(f"The examples pass ({self._n_judged} cases). Now all cases:")

    def _solved(self, _: str) -> None:
        coming = self._coming(self._problem.slug)
        told = f"n goes on to {coming}." if coming else "That was the last one: all are solved."
        self.screen.say(f"Solved. {told} o shows our solution.")
        self._keys("")

    # ------------------------------------------------------------------------------------ texts

    def _task(self) -> None:
        slugs = self._book.catalogue.slugs
        at = slugs.index(self._problem.slug) + 1
        track = self._book.catalogue.track(self._problem.slug).title
        self.screen.say(f"\n{track}: problem {at} of {len(slugs)}, {self._problem.slug}\n")
        self._page(self._problem.page)
        # Whole, so that a terminal can make a link of it.
        self.screen.show(lambda width: [[], [Span(text=f"Your file: {self._path}")]])
        if self._editor is None:
            self.screen.say("Open it in your editor; $VISUAL or $EDITOR would open it from here.")
        elif self._editor.has_window:
            self.screen.say(f"It opens in {self._editor.name}; e opens it again.")
        else:
            self.screen.say(f"e opens it here in {self._editor.name}; or use another window.")
        self.screen.say("Save it, and it is judged.\n")

    def _hint(self, _: str) -> None:
        hint = next_hint(self._book.record, self._problem)
        if hint is None:
            self.screen.say("This problem has no hints.")
            return
        last = "\n\nThat was the last hint; o is the solution." if hint.is_last else ""
        self.screen.say("")
        self._page(f"## Hint {hint.number} of {hint.of}\n\n{hint.text}{last}")
        self.screen.say("")

    def _solution(self, _: str) -> None:
        text = request_solution(self._book.record, self._problem)
        if text is None:
            self.screen.say("It is not solved yet. o again shows the solution; h is a hint.")
        else:
            self.screen.say("")
            self._page(f"## The solution\n\n```python\n{text}\n```")
            self.screen.say("")

    def _list(self, _: str) -> None:
        steps = self._book.course()
        self.screen.show(lambda width: course_lines(steps, width))
        self.screen.say("Type a number or a name and Enter; Enter alone goes back.")

    def _page(self, text: str) -> None:
        self.screen.show(lambda width: statement_lines(text, width))

    def _keys(self, _: str) -> None:
        self.screen.show(_key_lines)

    # ------------------------------------------------------------------------------------ files

    def _edit(self, _: str) -> None:
        if self._editor is None:
            self.screen.say(f"Set $VISUAL or $EDITOR to your editor, or open {self._path} in it.")
        elif self._editor.has_window:
            self._editor.open_beside(self._path)
        else:
            with self.screen.lent():
                started = self._editor.open_here(self._path)
            if not started:
                self.screen.say(f"{self._editor.name} could not be started: {self._path}")

    def _reset(self, _: str) -> None:
        kept = self._book.start(self._problem, self._path.parent, force=True)[1]
        self._watch = FileWatch(self._path)  # the starter need not be judged
        told = f" Yours is kept as {kept.name}." if kept else ""
        self.screen.say(f"The starter is back in {self._path.name}.{told}")

    def _quit(self, _: str) -> None:
        self.leave()
        self._is_over = True


def _rule(kind: str, width: int) -> list[Line]:
    """Return an empty line and a rule, so that one judgement is told from the last."""
    return [[], [Span(text=f"-- {kind} ".ljust(min(width, 60), "-"), is_faint=True)]]


def _key_lines(width: int) -> Iterator[Line]:
    told = "  ".join(f"{key}{_FIXED}{what}" for key, what in KEYS.items())
    for line in wrap(told, max(width, 12)):
        yield [Span(text=line.replace(_FIXED, " "), is_faint=True)]
