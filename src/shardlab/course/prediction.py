"""A question of a page that the reader answers before the answer is shown: a `predict` block.

    ```predict
    `x` is f32[12] on data=4 under P('data'). What does the body of each device get?
    ( ) f32[12]
    (x) f32[3]
    why: the spec divides the dimension by the size of the mesh axis, 12 / 4.
    ```

Instead of choices there can be a number to type: `answer: 48 bytes`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CHOICE = re.compile(r"\(([ x])\) +(\S.*)")
_ANSWER = re.compile(r"answer: *(-?[\d,]+(?:\.\d+)?) *(.*)")
_WHY = "why:"
# A number as people type it: 1 048 576, 1,048,576 or 1048576, and perhaps the unit after it.
_TYPED_NUMBER = re.compile(r"\s*(-?\d[\d\s,_]*(?:\.\d+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One question with its answer and the reason.

    >>> prediction = parse_prediction("Bytes?\\nanswer: 48 bytes\\nwhy: 12 elements of 4 bytes.")
    >>> prediction.is_right("48"), prediction.is_right(" 48 bytes"), prediction.is_right("12")
    (True, True, False)
    """

    question: str
    choices: tuple[str, ...]  # empty if a number is typed
    answer: str  # one of the choices, or the number
    unit: str  # of the number, such as bytes
    why: str

    @property
    def answer_text(self) -> str:
        """Return the answer with its unit."""
        return f"{self.answer} {self.unit}".strip()

    def is_right(self, guess: str) -> bool:
        """Return whether a guess is the answer."""
        if self.choices:
            return guess == self.answer
        typed = _TYPED_NUMBER.fullmatch(guess)
        return typed is not None and _parse_number(typed[1]) == _parse_number(self.answer)


def parse_prediction(text: str) -> Prediction:
    """Return the question of a `predict` block. Raises `ValueError` with what is missing."""
    head, separator, why = text.partition(f"\n{_WHY}")
    if not separator or not why.strip():
        raise ValueError("the reason is missing: `why: ...` as its last paragraph")
    question, choices, right = [], [], []
    answer, unit = "", ""
    for line in head.splitlines():
        if match := _CHOICE.fullmatch(line.strip()):
            choices.append(match[2])
            right += [match[2]] if match[1] == "x" else []
        elif match := _ANSWER.fullmatch(line.strip()):
            answer, unit = match[1], match[2]
        elif choices or answer:
            raise ValueError(f"{line!r} is after the answer, and is not `why:`")
        else:
            question.append(line.strip())
    if not any(question):
        raise ValueError("the question is missing")
    if bool(choices) == bool(answer):
        raise ValueError("it needs either choices, `( ) text` and `(x) text`, or `answer: 48`")
    if choices and (len(right) != 1 or len(set(choices)) != len(choices) or len(choices) < 2):
        raise ValueError("it needs two or more different choices, of which one is `(x)`")
    return Prediction(
        question=" ".join(question).strip(),
        choices=tuple(choices),
        answer=answer or right[0],
        unit=unit,
        why=" ".join(why.split()),
    )


def _parse_number(text: str) -> float:
    return float(re.sub(r"[\s,_]", "", text))
