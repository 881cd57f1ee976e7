"""The dtype policy of training: the dtypes of parameters, gradients and optimizer states.

>>> str(parse_dtype_policy("mixed"))
'parameters bf16, gradients bf16, moments f32, master f32'
>>> str(parse_dtype_policy("bf16,gradients=f32,master=none"))
'parameters bf16, gradients f32, moments f32, master none'
>>> str(parse_dtype_policy(None))
'parameters as they are, gradients the same, moments f32, master f32 with adamw'
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from shardlab._text.nearest import did_you_mean, nearest_name
from shardlab.errors import InvalidType, UnknownOption, short_repr
from shardlab.sharding.dtype import DTYPE_NAMES, Dtype, parse_dtype

_F32 = parse_dtype("f32")
_BF16 = parse_dtype("bf16")


@dataclass(frozen=True, kw_only=True)
class DtypePolicy:
    """The dtypes of training, and whether there is a master copy of parameters.

    A master copy exists only for parameters with fewer bits than it has itself. Parameters may also
    be int8 or int4, for inference; the scales they need are not counted.
    """

    parameters: Dtype | None = None  # None: as stored in the model
    gradients: Dtype | None = None  # None: as parameters
    moments: Dtype | None = _F32  # None: as parameters, which is Optax's default
    master: Dtype = _F32
    with_master: bool | None = None  # None: if the optimizer usually has one, as adamw

    def parameter(self, dtype: Dtype) -> Dtype:
        """Return the dtype of a parameter; integers and PRNG keys are not converted."""
        return self.parameters if self.parameters is not None and is_float(dtype) else dtype

    def gradient(self, parameter: Dtype) -> Dtype:
        # No framework computes gradients in fp8: those of fp8 weights have 16 bits.
        return self.gradients or (parameter if parameter.bits >= 16 else _BF16)

    def moment(self, parameter: Dtype) -> Dtype:
        return self.moments or parameter

    def has_master(self, parameter: Dtype, is_usual: bool) -> bool:
        """Return whether there is a master copy; `is_usual` is the optimizer's default."""
        is_requested = is_usual if self.with_master is None else self.with_master
        return is_requested and parameter.bits < self.master.bits

    def __str__(self) -> str:
        parameters = "as they are" if self.parameters is None else self.parameters.short
        gradients, moments = self.gradients or self.parameters, self.moments or self.parameters
        masters = {True: self.master.short, False: "none", None: f"{self.master.short} with adamw"}
        master = masters[self.with_master]
        return (
            f"parameters {parameters}, gradients {gradients.short if gradients else 'the same'}, "
            f"moments {moments.short if moments else 'the same'}, master {master}"
        )


NAMED_POLICIES = {
    "as-is": DtypePolicy(),
    # Micikevicius et al. 2018 (arXiv 1710.03740) with bf16 in place of f16: 16 bytes per parameter.
    "mixed": DtypePolicy(parameters=_BF16, gradients=_BF16, moments=_F32, with_master=True),
    "bf16-all": DtypePolicy(parameters=_BF16, gradients=_BF16, moments=_BF16, with_master=False),
}
_DTYPE_ALIASES = {"fp8": "float8_e4m3fn", "bfloat": "bf16"}
_PARTS = {  # accepted key -> field of DtypePolicy
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
    """Return whether a dtype can be trained: floating point or complex."""
    return dtype.name.startswith(("float", "bfloat", "complex"))


def check_trainable(policy: DtypePolicy) -> None:
    """Reject training of integer parameters, which have no gradient.

    >>> check_trainable(parse_dtype_policy("int8"))
    Traceback (most recent call last):
        ...
    shardlab.errors.UnknownOption: [plan.unknown_option] int8 parameters cannot be trained.
      where: parameters s8, gradients s8, moments f32, master f32 with adamw
      try:   parameters such as bf16; or no optimizer, which plans inference.
    """
    if policy.parameters is not None and not is_float(policy.parameters):
        raise UnknownOption(
            f"{policy.parameters.name} parameters cannot be trained.",
            where=str(policy),
            fix="parameters such as bf16; or no optimizer, which plans inference.",
        )


def parse_dtype_policy(policy: Any = None, **parts: Any) -> DtypePolicy:
    """Return the policy for a name, a dtype, text such as `bf16,gradients=f32`, and single parts.

    >>> parse_dtype_policy("bf16", master="none") == parse_dtype_policy("bf16,master=none")
    True

    A name is one of `as-is`, `mixed` (bf16 with a float32 master copy and moments) and `bf16-all`;
    a dtype is that of parameters. A part is a dtype; `moments="same"` stores them as parameters,
    `master="none"` stores no master copy.
    """
    if policy is None or isinstance(policy, DtypePolicy):
        parsed = policy or DtypePolicy()
    elif isinstance(policy, str):
        parsed = _parse_policy_text(policy)
    elif type(policy).__module__ == "builtins":
        # Dtypes of NumPy, JAX and PyTorch are accepted; a list or an int cannot be one.
        raise InvalidType(
            f"{short_repr(policy)} is not a dtype policy.", fix='text such as "mixed".'
        )
    else:
        parsed = DtypePolicy(parameters=parse_dtype(policy))
    for key, value in parts.items():
        if value is not None:
            parsed = _replace_part(parsed, key, value)
    return parsed


def _parse_policy_text(text: str) -> DtypePolicy:
    policy = DtypePolicy()
    for item in filter(None, map(str.strip, text.split(","))):
        key, equals, value = map(str.strip, item.partition("="))
        if equals:
            policy = _replace_part(policy, key, value)
        # A name replaces everything before it, single parts after it change it.
        elif item.lower() in NAMED_POLICIES:
            policy = NAMED_POLICIES[item.lower()]
        else:
            policy = _replace_part(policy, "parameters", item, NAMED_POLICIES)
    return policy


def _replace_part(
    policy: DtypePolicy, key: str, value: Any, policy_names: Collection[str] = ()
) -> DtypePolicy:
    """Return the policy with one part replaced; `policy_names` were accepted there too."""
    part = _PARTS.get(key.lower())
    if part is None:
        suggestion = nearest_name(key, _PARTS)
        raise UnknownOption(
            f"A dtype policy has no part {short_repr(key)}; known: parameters, gradients, moments, "
            "master.",
            fix=f"Did you mean {_PARTS[suggestion]!r}?"
            if suggestion
            else "such as 'bf16,gradients=f32'.",
        )
    if isinstance(value, str):
        keyword = _parse_keyword(part, value.strip().lower())
        if keyword is not None:
            return replace(policy, **keyword)
    dtype = _parse_part_dtype(value, policy_names)
    # Quantized parameters exist in inference; gradients and moments need fractions.
    if not is_float(dtype) and (part != "parameters" or not dtype.name.startswith(("int", "uint"))):
        raise UnknownOption(
            f"{dtype.name} is not a floating-point dtype, and {part} need one.",
            fix="such as bf16 or f32.",
        )
    changes: dict[str, Any] = {part: dtype}
    if part == "master":
        changes["with_master"] = True
    return replace(policy, **changes)


def _parse_keyword(part: str, value: str) -> dict[str, Any] | None:
    """Return the fields that a keyword such as `master=none` sets; None for a dtype."""
    if part == "master" and value in ("none", "no", "off"):
        return {"with_master": False}
    if part != "master" and value in ("same", "as-is"):
        return {part: None}
    return None


def _parse_part_dtype(value: Any, policy_names: Collection[str]) -> Dtype:
    try:
        return parse_dtype(_DTYPE_ALIASES.get(value, value) if isinstance(value, str) else value)
    except (InvalidType, ValueError):
        names = (*policy_names, *DTYPE_NAMES)
        suggestion = did_you_mean(value, names) if isinstance(value, str) else ""
        raise UnknownOption(
            f"Unknown dtype{' or dtype policy' if policy_names else ''} {short_repr(value)}"
            f"{'; policies: ' + ', '.join(policy_names) if policy_names else ''}.",
            fix=suggestion or "a dtype such as bf16.",
        ) from None
