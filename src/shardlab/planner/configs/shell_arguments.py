"""Flags of a launch script, without running it: assignments, `$VARIABLES`, arrays, `--name value`.

>>> script = '''
... TP=4
... ARGS=(--tensor-model-parallel-size $TP  # within a node
...       --swiglu)
... torchrun --nproc_per_node ${GPUS:-8} pretrain_gpt.py ${ARGS[@]}
... '''
>>> read_arguments(script, "train.sh", switches=("swiglu",)).flags
{'tensor-model-parallel-size': '4', 'swiglu': True, 'nproc-per-node': '8'}

This is no shell: conditions are not evaluated, and every branch is read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass, field
from io import StringIO

from shardlab.errors import InvalidRunConfig

MAX_BYTES = 200_000  # a second of reading; a launch script has a few thousand
_MAX_EXPANSION = 100_000  # characters of one value: variables may repeat each other
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)(?::?[-=]([^{}]*))?\}|\$(\w+)")
_ARITHMETIC = re.compile(r"\$\(\(([^()]{0,200})\)\)")
_PRODUCT = re.compile(r"\s*(\d{1,15})\s*(?:([*/+-])\s*(\d{1,15})\s*)?")
_NUMBER = re.compile(r"-\d+(\.\d+)?(e-?\d+)?", re.IGNORECASE)
_END_OF_FLAG = (")", ";", "|", "&&", "||", "then", "fi", "else", "done", "\\")


@dataclass
class Arguments:
    """The last value of each flag, and of each variable."""

    flags: dict[str, str | bool] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    has_conditions: bool = False


def read_arguments(text: str, where: str, switches: Collection[str] = ()) -> Arguments:
    """Return the flags in a script or a list of flags; `switches` are those without a value."""
    arguments = Arguments(has_conditions=bool(re.search(r"^\s*(?:if|case)\s", text, re.MULTILINE)))
    joined = re.sub(r"\\\r?\n", " ", text)
    # Spaces inside $(( )) would split the expression into words.
    joined = _ARITHMETIC.sub(lambda match: f"$(({match[1].replace(' ', '')}))", joined)
    reader = _FlagReader(arguments, switches)
    for word in _split_words(joined, where):
        reader.add(word)
    reader.finish()
    return arguments


def _split_words(text: str, where: str) -> list[str]:
    lexer = shlex.shlex(StringIO(text), posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        return list(lexer)
    except ValueError as error:
        raise InvalidRunConfig(
            f"The script cannot be split into words: {error!s:.100}.",
            where=f"{where}, line {lexer.lineno}",
            fix="close the quotation there, or write the flags to a file of their own.",
        ) from None


class _FlagReader:
    """Collects flags word by word."""

    def __init__(self, arguments: Arguments, switches: Collection[str]) -> None:
        self.arguments = arguments
        self.switches = switches
        self._waiting: str | None = None  # a flag whose value may come next

    def add(self, word: str) -> None:
        assignment = _ASSIGNMENT.fullmatch(word)
        if assignment and not word.startswith("-"):
            self._flush()
            self._assign(assignment[1], assignment[2])
            return
        word = word.removeprefix("(")
        if " " in word.strip() and "--" in word:  # an array item such as "--fp8-format hybrid"
            for part in word.split():
                self._add_word(part)
            return
        self._add_word(word)

    def finish(self) -> None:
        self._flush()

    def _assign(self, name: str, value: str) -> None:
        is_array = value.startswith("(")  # its items are the next words
        value = value.removeprefix("(")
        if "--" in value:  # a variable that consists of flags
            for part in value.split():
                self._add_word(part)
            if not is_array:
                self._flush()
            return
        self.arguments.variables[name] = self._expand(value.strip())

    def _add_word(self, word: str) -> None:
        is_closed = word.endswith(")") and "(" not in word
        word = word.rstrip(")") if is_closed else word
        if word.startswith("--") and len(word) > 2:
            self._flush()
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-").lower()
            if equals:
                self.arguments.flags[name] = self._expand(value)
            elif name in self.switches:
                self.arguments.flags[name] = True
            else:
                self._waiting = name
        elif self._waiting is not None and _is_value(word):
            self.arguments.flags[self._waiting] = self._expand(word)
            self._waiting = None
        if is_closed or word in _END_OF_FLAG:
            self._flush()

    def _flush(self) -> None:
        if self._waiting is not None:
            self.arguments.flags[self._waiting] = True
            self._waiting = None

    def _expand(self, value: str) -> str:
        """Return a value with the variables replaced that earlier lines set."""
        variables = self.arguments.variables

        def look_up(match: re.Match[str]) -> str:
            return variables.get(match[1] or match[3], match[0])

        def replace(match: re.Match[str]) -> str:
            # The default may itself be a variable: ${NODES:-$SLURM_NNODES}.
            default = match[0] if match[2] is None else _VARIABLE.sub(look_up, match[2])
            return variables.get(match[1] or match[3], default)

        return _ARITHMETIC.sub(_evaluate, _VARIABLE.sub(replace, value)[:_MAX_EXPANSION])


def _is_value(word: str) -> bool:
    is_option = word.startswith("-") and not _NUMBER.fullmatch(word)
    return bool(word) and word not in _END_OF_FLAG and not is_option


def _evaluate(match: re.Match[str]) -> str:
    """Return the value of an operation on two whole numbers; text that is none stays."""
    operation = _PRODUCT.fullmatch(match[1])
    if operation is None:
        return match[0]
    left, operator, right = operation[1], operation[2], operation[3]
    if operator is None:
        return left
    if operator == "*":
        return str(int(left) * int(right))
    if operator == "/":
        return str(int(left) // int(right)) if int(right) else match[0]
    return str(int(left) + (int(right) if operator == "+" else -int(right)))
