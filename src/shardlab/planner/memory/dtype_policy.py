"""The dtype policy of training: what parameters, gradients and an optimizer's arrays are held in.

>>> str(parse_dtype_policy("mixed"))
'parameters bf16, gradients bf16, moments f32, master f32'
>>> str(parse_dtype_policy("bf16,gradients=f32,master=none"))
'parameters bf16, gradients f32, moments f32, master none'
>>> str(parse_dtype_policy(None))
'parameters as they are, gradients the same, moments f32, master f32 with adamw'
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidType, UnknownOption, short_repr
from shardlab.sharding.dtype import Dtype, parse_dtype

_F32 = parse_dtype("f32")
_BF16 = parse_dtype("bf16")


@dataclass(frozen=True, kw_only=True)
class DtypePolicy:
    """The dtypes of training, and whether there is a master copy of parameters.

    A parameter of fewer than 16 bits has gradients of 16: no gradient is computed in fp8. A master
    copy is kept only of parameters with fewer bits than it has itself. Parameters may be int8 or
    int4 too, for inference; what scales they need is not counted.
    """

    parameters: Dtype | None = None  # None: as the model has them
    gradients: Dtype | None = None  # None: as parameters
    moments: Dtype | None = _F32  # None: as parameters, which is what Optax does
    master: Dtype = _F32
    with_master: bool | None = None  # None: where the optimizer is known for it, as adamw

    def parameter(self, dtype: Dtype) -> Dtype:
        """Return what a parameter is held in; whole numbers and keys stay what they are."""
        return self.parameters if self.parameters is not None and is_float(dtype) else dtype

    def gradient(self, parameter: Dtype) -> Dtype:
        return self.gradients or (parameter if parameter.bits >= 16 else _BF16)

    def moment(self, parameter: Dtype) -> Dtype:
        return self.moments or parameter

    def has_master(self, parameter: Dtype, is_usual: bool) -> bool:
        """Tell whether a master copy is kept; `is_usual` where the optimizer is known for it."""
        wanted = is_usual if self.with_master is None else self.with_master
        return wanted and parameter.bits < self.master.bits

    def __str__(self) -> str:
        parameters = "as they are" if self.parameters is None else self.parameters.short
        gradients, moments = self.gradients or self.parameters, self.moments or self.parameters
        words = {True: self.master.short, False: "none", None: f"{self.master.short} with adamw"}
        return (
            f"parameters {parameters}, gradients {gradients.short if gradients else 'the same'}, "
            f"moments {moments.short if moments else 'the same'}, master {words[self.with_master]}"
        )


NAMED = {
    "as-is": DtypePolicy(),
    "mixed": DtypePolicy(parameters=_BF16, gradients=_BF16, moments=_F32, with_master=True),
    "bf16-all": DtypePolicy(parameters=_BF16, gradients=_BF16, moments=_BF16, with_master=False),
}
_SHORT = {"fp8": "float8_e4m3fn", "bfloat": "bf16"}
_KEYS = {
    "parameters": "parameters",
    "param": "parameters",
    "params": "parameters",
    "gradients": "gradients",
    "grad": "gradients",
    "grads": "gradients",
    "moments": "moments",
    "moment": "moments",
    "master": "master",
}


def is_float(dtype: Dtype) -> bool:
    """Tell whether a dtype can be trained: floating point or complex."""
    return dtype.name.startswith(("float", "bfloat", "complex"))


def check_trained(policy: DtypePolicy) -> None:
    """Refuse to train parameters in whole numbers, of which there is no gradient.

    >>> check_trained(parse_dtype_policy("int8"))
    Traceback (most recent call last):
        ...
    shardlab.errors.UnknownOption: [plan.unknown_option] int8 parameters cannot be trained.
      where: parameters s8, gradients s8, moments f32, master f32 with adamw
      try:   parameters such as bf16; or no optimizer, which plans for inference.
    """
    if policy.parameters is not None and not is_float(policy.parameters):
        raise UnknownOption(
            f"{policy.parameters.name} parameters cannot be trained.",
            where=str(policy),
            fix="parameters such as bf16; or no optimizer, which plans for inference.",
        )


def parse_dtype_policy(policy: Any = None, **parts: Any) -> DtypePolicy:
    """Return the policy of a name, a dtype, text such as `bf16,gradients=f32`, and single parts.

    >>> parse_dtype_policy("bf16", master="none") == parse_dtype_policy("bf16,master=none")
    True

    A name is one of `as-is`, `mixed` (bf16 with a float32 master copy and moments) and `bf16-all`;
    a dtype is that of parameters. A part is given as a dtype; `moments="same"` keeps them as
    parameters, `master="none"` keeps no master copy.
    """
    if policy is None or isinstance(policy, DtypePolicy):
        made = policy or DtypePolicy()
    elif isinstance(policy, str):
        made = _parse_text(policy)
    elif type(policy).__module__ == "builtins":
        raise InvalidType(
            f"{short_repr(policy)} is not a dtype policy.", fix='text such as "mixed".'
        )
    else:
        made = DtypePolicy(parameters=parse_dtype(policy))
    for key, value in parts.items():
        if value is not None:
            made = _with(made, key, value)
    return made


def _parse_text(text: str) -> DtypePolicy:
    made = DtypePolicy()
    for word in filter(None, map(str.strip, text.split(","))):
        key, equals, value = map(str.strip, word.partition("="))
        if equals:
            made = _with(made, key, value)
        elif word.lower() in NAMED:
            made = NAMED[word.lower()]
        else:
            made = _with(made, "parameters", word, NAMED)
    return made


def _with(policy: DtypePolicy, key: str, value: Any, names: Any = ()) -> DtypePolicy:
    """Return the policy with one part changed."""
    part = _KEYS.get(key.lower())
    if part is None:
        near = nearest_name(key, _KEYS)
        raise UnknownOption(
            f"A dtype policy has no part {short_repr(key)}; it has parameters, gradients, moments and "
            "master.",
            fix=f"{_KEYS[near]!r}." if near else "such as 'bf16,gradients=f32'.",
        )
    if isinstance(value, str) and (special := _special(part, value.strip().lower())) is not None:
        return replace(policy, **special)
    dtype = _dtype(value, names)
    if not is_float(dtype) and (part != "parameters" or not dtype.name.startswith(("int", "uint"))):
        raise UnknownOption(
            f"{dtype.name} holds no fractions, and {part} need them.", fix="such as bf16 or f32."
        )
    changed: dict[str, Any] = {part: dtype}
    if part == "master":
        changed["with_master"] = True
    return replace(policy, **changed)


def _special(part: str, word: str) -> dict[str, Any] | None:
    if part == "master" and word in ("none", "no", "off"):
        return {"with_master": False}
    if part != "master" and word in ("same", "as-is"):
        return {part: None}
    return None


def _dtype(value: Any, names: Any) -> Dtype:
    try:
        return parse_dtype(_SHORT.get(value, value) if isinstance(value, str) else value)
    except (InvalidType, ValueError) as error:
        raise UnknownOption(
            f"There is no dtype{' and no dtype policy' if names else ''} {short_repr(value)}"
            f"{'; policies are ' + ', '.join(names) if names else ''}.",
            fix=getattr(error, "fix", None) or "a dtype such as bf16.",
        ) from None
