"""NumPy for a reference that computes as a submission does: in float32.

References use float64 so that the tolerance covers only the rounding of a submission. A mutant of
one then does not overflow where the submission would: a softmax without its maximum is right in
float64 up to 709, in float32 up to 88.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Float32Numpy:
    """The module `numpy` with float32 in place of float64."""

    float64 = np.float32
    double = np.float32

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        is_function = callable(value) and not isinstance(value, type)
        return _with_weak_scalars(value) if is_function else value


def _with_weak_scalars(function: Any) -> Any:
    """Return the function with Python's floats as results instead of NumPy's.

    `np.sqrt(4)` is a float64 scalar, and an array of float32 divided by it would be float64.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return float(result) if type(result) is np.float64 else result

    return call
