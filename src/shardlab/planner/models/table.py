"""Model tables: a model in TOML or JSON; presets are such files, and users may write their own.

>>> print(parse_table('''
... name = "tiny"
... [tensors]
... "layers.{0..1}.up.weight" = "bf16[64,16]"
... "embed.weight" = { array = "bf16[100,16]", axes = ["vocab", "embed"] }
... ''', "tiny.toml").n_parameters)
3648
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from math import prod
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import read_bounded_text
from shardlab._files.json_reader import reject_duplicate_keys
from shardlab._files.schema import Field, check_fields, is_count, is_table, is_text, is_text_list
from shardlab._files.toml_reader import parse_toml
from shardlab.errors import InvalidModel, LabError
from shardlab.planner.model import Architecture, Model
from shardlab.planner.models.hf_config import model_from_config
from shardlab.planner.models.maxtext import is_sharding_dump, model_from_sharding_dump
from shardlab.planner.tensor_group import RANGE, LogicalAxes, TensorGroup, parse_tensor_group
from shardlab.sharding.dtype import Dtype, parse_dtype
from shardlab.sharding.shape import parse_array, parse_shape
from shardlab.sharding.spec import Spec, parse_spec

MAX_TENSORS = 1_000_000  # of one table; a typo in a range makes it too large
_MAX_BYTES = 16_000_000
_MAX_ELEMENTS = 1 << 63  # of one tensor
_MAX_PATH = 1_000  # characters
_SLOT = re.compile(r"\{[0-9]+\.\.[0-9]+(?:\.\.[0-9]+)?\}|[0-9]+")
_HUGE_RANGE = re.compile(r"\{0*[0-9]{1,9}\.\.0*[1-9][0-9]{9,}(?:\.\.[0-9]+)?\}")
_MAX_PAIRWISE = 64  # paths that are compared in pairs; the numbers of more are enumerated

Slots = tuple[range | str, ...]  # the numbers of a path, as ranges or as written

# ------------------------------------------------------------------------------------ the schema


def _is_axis_name(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.isprintable())


def _is_spec_list(values: list[Any]) -> bool:
    return all(
        _is_axis_name(entry) or (isinstance(entry, list) and all(map(_is_axis_name, entry)))
        for entry in values
    )


def _is_size(value: Any) -> bool:
    return is_count(value, 1)


TABLE = {
    "name": Field(
        expected="text",
        is_valid=is_text,
        meaning="of the model, as the plan shows it",
        is_required=True,
    ),
    "tensors": Field(
        expected='a table such as {"layers.{0..31}.up.weight" = "bf16[14336,4096]"}',
        is_valid=lambda v: is_table(v) and len(v) > 0,
        meaning="its tensors by path; `{0..31}` in a path stands for the numbers 0 to 31, "
        "`{1..31..2}` for the odd ones",
        is_required=True,
    ),
    "architecture": Field(
        expected="a table",
        is_valid=is_table,
        meaning="its architecture, from which activations and caches are estimated",
    ),
    "also": Field(
        expected="a list of texts",
        is_valid=is_text_list,
        meaning="aliases of the model, for presets",
    ),
    "note": Field(expected="text", is_valid=is_text, meaning="a remark that the plan repeats"),
    "published": Field(
        expected="a whole number",
        is_valid=is_count,
        meaning="parameters according to the publisher",
    ),
    "published_source": Field(
        expected="text", is_valid=is_text, meaning="the source of that count"
    ),
    "config_source": Field(
        expected="text", is_valid=is_text, meaning="the source of the architecture"
    ),
    "n_tensors": Field(
        expected="a whole number",
        is_valid=is_count,
        meaning="the number of tensors, as a check: another number is an error",
    ),
    "n_bytes": Field(
        expected="a whole number",
        is_valid=is_count,
        meaning="the bytes of all tensors, as a check: another number is an error",
    ),
}

TENSOR = {
    "array": Field(
        expected='text such as "bf16[4096,1024]"',
        is_valid=is_text,
        meaning="dtype and shape together",
    ),
    "shape": Field(
        expected="a list of sizes such as [4096, 1024]",
        is_valid=lambda v: isinstance(v, list) and not any(isinstance(size, bool) for size in v),
        meaning="instead of array",
    ),
    "dtype": Field(
        expected='text such as "bf16"',
        is_valid=is_text,
        meaning="with shape; float32 by default",
    ),
    "axes": Field(
        expected='a list of texts such as ["vocab", "embed"]',
        is_valid=lambda v: isinstance(v, list) and all(map(_is_axis_name, v)),
        meaning='logical names of the dimensions, "" for none; strategies and rules use them',
    ),
    "spec": Field(
        expected='text such as "None,model", or a list',
        is_valid=lambda v: (
            _is_axis_name(v) if isinstance(v, str) else isinstance(v, list) and _is_spec_list(v)
        ),
        meaning="the sharding that the model itself declares",
    ),
}

# field of an architecture -> its meaning
ARCHITECTURE_MEANINGS = {
    "layers": "of the decoder",
    "hidden": "width of the residual stream",
    "heads": "of queries",
    "kv_heads": "of keys and values",
    "head_dim": "width of one head",
    "ffn": "inner width of the MLP; of one expert in a mixture of experts",
    "vocab": "rows of the embedding",
    "tied_embeddings": "whether the output layer shares the embedding",
    "experts": "in a layer; 0 for a dense model",
    "top_k": "experts per token",
    "shared_experts": "experts that process every token",
    "dense_layers": "layers of a mixture of experts that have no experts, mostly the first",
    "dense_ffn": "inner width of the MLP in those layers",
    "kv_lora_rank": "width of the compressed cache of latent attention",
    "rope_head_dim": "width of the rotary part that latent attention also caches",
    "gated": "whether two matrix products come before the activation, as in SwiGLU",
    "window": "tokens that local layers attend to, and cache",
    "window_layers": "number of local layers",
    "expert_groups": "groups of experts of node-limited routing; 0 without",
    "top_groups": "groups that have the experts of a token",
    "v_head_dim": "width of one value head, if it is not that of a key head",
}
ARCHITECTURE = {
    field.name: Field(
        expected="true or false",
        is_valid=lambda v: isinstance(v, bool),
        meaning=ARCHITECTURE_MEANINGS[field.name],
    )
    if field.type == "bool"
    else Field(
        expected="a whole number", is_valid=is_count, meaning=ARCHITECTURE_MEANINGS[field.name]
    )
    if field.default is not MISSING
    else Field(
        expected="a whole number from 1 on",
        is_valid=_is_size,
        meaning=ARCHITECTURE_MEANINGS[field.name],
        is_required=True,
    )
    for field in fields(Architecture)
}

# JSON files that are mistaken for a table: a key that identifies them -> what the file is, the fix
_OTHER_FILES = {
    "weight_map": (
        "an index of safetensors files",
        "rename it so that it ends in .safetensors.index.json.",
    ),
}

# ------------------------------------------------------------------------------------ the reader


def load_table(file: Path) -> Model:
    """Return the model that a file describes."""
    text = read_bounded_text(file, _MAX_BYTES)
    parse = parse_json if file.name.lower().endswith(".json") else parse_table
    return parse(text, str(file))


def parse_table(text: str, where: str) -> Model:
    """Return the model that a TOML text describes."""
    try:
        data = parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise _syntax_error("TOML", error, where) from None
    return model_from_table(data, where)


def parse_json(text: str, where: str) -> Model:
    """Return the model that a JSON text describes."""
    try:
        data = json.loads(text, object_pairs_hook=reject_duplicate_keys)
    except (ValueError, RecursionError) as error:
        raise _syntax_error("JSON", error, where) from None
    for key, (description, fix) in _OTHER_FILES.items():
        if isinstance(data, Mapping) and key in data and "tensors" not in data:
            raise InvalidModel(
                f"This is {description}, not a table of tensors.", where=where, fix=fix
            )
    if is_sharding_dump(data):
        return model_from_sharding_dump(data, where)
    if isinstance(data, Mapping) and "model_type" in data and "tensors" not in data:
        return _model_of_config(data, where)
    return model_from_table(data, where)


def _model_of_config(data: Mapping[str, Any], where: str) -> Model:
    try:
        return model_from_config(data, where)
    except InvalidModel as error:
        fix = error.fix or "use the folder with its weights, or a table of its tensors."
        raise InvalidModel(error.what, where=where, fix=fix) from None


def _syntax_error(language: str, error: Exception, where: str) -> InvalidModel:
    reason = f"{error!s:.200}"
    if isinstance(error, RecursionError):
        reason = "too many nested brackets"
    elif "integer string conversion" in reason:
        # Python's message recommends sys.set_int_max_str_digits, which does not help here.
        reason = "a number has too many digits"
    return InvalidModel(
        f"The file is not valid {language}: {reason}.", where=where, fix="fix the syntax there."
    )


def model_from_table(data: Any, where: str) -> Model:
    """Return the model of a table; errors name the location in the table."""
    check_fields(data, TABLE, where, InvalidModel)
    check_paths(data["tensors"], where)
    architecture = None
    if "architecture" in data:
        architecture = Architecture(
            **check_fields(data["architecture"], ARCHITECTURE, where, InvalidModel, "architecture")
        )
    model = Model(
        name=data["name"],
        groups=tuple(_parse_group(path, entry, where) for path, entry in data["tensors"].items()),
        source=where,
        architecture=architecture,
        published=data.get("published"),
        notes=(data["note"],) if "note" in data else (),
        details={key: value for key, value in data.items() if key.endswith("_source")},
    )
    for key in ("n_tensors", "n_bytes"):
        if key in data and data[key] != getattr(model, key):
            raise InvalidModel(
                f"{key!r} is {data[key]:,}, but the tensors have {getattr(model, key):,}.",
                where=f"{where}, {key}",
                fix="correct or remove it.",
            )
    return model


def _parse_group(path: str, entry: Any, where: str) -> TensorGroup:
    location = f"{where}, tensors.{path!r:.200}"
    try:
        shape, dtype, axes, spec = _parse_entry(entry, where, path)
    except InvalidModel:
        raise
    except LabError as error:  # of a shape, a dtype or a spec
        inner = f": {error.where}" if error.where else ""
        raise InvalidModel(error.what, where=location + inner, fix=error.fix) from None
    group = parse_tensor_group(path, shape, dtype, axes, spec)
    if group.n_elements >= _MAX_ELEMENTS:
        raise InvalidModel(
            f"Tensor {path!r:.200} has 2**63 elements or more.",
            where=location,
            fix="use sizes that an array can have.",
        )
    # A spec may be shorter than the shape, as in JAX; axis names must be complete.
    for key, value, min_length in (("axes", axes, len(shape)), ("spec", spec, 0)):
        if value is not None and not min_length <= len(value) <= len(shape):
            raise InvalidModel(
                f"{key!r} is {value!s:.200}, but the shape is {shape!s:.200}.",
                where=f"{location}.{key}",
                fix="write one entry for each dimension.",
            )
    return group


def _parse_entry(
    entry: Any, where: str, path: str
) -> tuple[tuple[int, ...], Dtype, LogicalAxes | None, Spec | None]:
    """Return shape, dtype, axis names and spec of a tensor."""
    if is_text(entry):
        return *parse_array(entry), None, None
    location = f"tensors.{path!r:.200}"
    check_fields(entry, TENSOR, where, InvalidModel, location)
    if ("array" in entry) == ("shape" in entry) or ("array" in entry and "dtype" in entry):
        raise InvalidModel(
            f"Tensor {path!r:.200} has {', '.join(entry) or 'no keys'}.",
            where=f"{where}, {location}",
            fix='use either array = "bf16[8,4]", or shape and dtype.',
        )
    if "array" in entry:
        shape, dtype = parse_array(entry["array"])
    else:
        shape, dtype = parse_shape(tuple(entry["shape"])), parse_dtype(entry.get("dtype", "f32"))
    axes = tuple(name or None for name in entry["axes"]) if "axes" in entry else None
    return shape, dtype, axes, parse_spec(entry["spec"]) if "spec" in entry else None


# ------------------------------------------------------------------------------- paths with ranges


def check_paths(tensors: Mapping[str, Any], where: str) -> None:
    """Raise if a path is invalid, or if two paths stand for the same tensor."""
    # Only paths with the same text around their numbers can overlap.
    by_skeleton: dict[str, list[tuple[str, Slots]]] = {}
    n_tensors = 0
    for path in tensors:
        slots = _parse_slots(path, where)
        n_tensors += prod(len(slot) for slot in slots if isinstance(slot, range))
        if n_tensors > MAX_TENSORS:
            message = f"There are more than {MAX_TENSORS:,} tensors, up to path {path!r:.200}."
            raise _path_error(message, path, where, "use smaller ranges.")
        by_skeleton.setdefault(_SLOT.sub("#", path), []).append((path, slots))
    for members in by_skeleton.values():
        if len(members) > 1 and (overlap := _find_overlap(members)):
            first, second = overlap
            message = f"Paths {first!r:.200} and {second!r:.200} stand for the same tensors."
            raise _path_error(message, second, where, "use ranges that do not overlap.")


def _parse_slots(path: str, where: str) -> Slots:
    """Return the numbers of a path, each range in braces as a range."""
    if not path or not path.isprintable() or len(path) > _MAX_PATH:
        raise _path_error(
            f"{path!r:.80} is not a path.", path, where, "use a path such as layers.0.up."
        )
    if _HUGE_RANGE.search(path):
        message = f"There are more than {MAX_TENSORS:,} tensors in {path!r:.200}."
        raise _path_error(message, path, where, "use smaller ranges.")
    if "{" in RANGE.sub("", path) or "}" in RANGE.sub("", path):
        message = f"Path {path!r:.200} has braces that are no range."
        raise _path_error(message, path, where, "use a range such as {0..31}.")
    return tuple(_parse_slot(match, path, where) for match in _SLOT.finditer(path))


def _parse_slot(match: re.Match[str], path: str, where: str) -> range | str:
    text = match[0]
    if not text.startswith("{"):
        return text
    first, last, *step = text[1:-1].split("..")
    if any(str(int(number)) != number for number in (first, last, *step)):
        raise _path_error(f"{text} has leading zeros.", path, where, "write {0..31}.")
    if step == ["0"]:
        raise _path_error(f"{text} has a step of 0.", path, where, f"write {{{first}..{last}}}.")
    if int(first) > int(last):
        raise _path_error(f"{text} is descending.", path, where, f"write {{{last}..{first}}}.")
    neighbors = path[match.start() - 1 : match.start()] + path[match.end() : match.end() + 1]
    if re.search(r"[0-9{}]", neighbors):
        raise _path_error(
            f"{text} is next to another number.",
            path,
            where,
            "put the range between separators, such as layers.{0..31}.up.",
        )
    return range(int(first), int(last) + 1, *map(int, step))


def _find_overlap(members: Sequence[tuple[str, Slots]]) -> tuple[str, str] | None:
    """Return two paths with the same text that stand for a common tensor, if there are two."""
    if len(members) <= _MAX_PAIRWISE:
        for index, (path, slots) in enumerate(members):
            for earlier_path, earlier_slots in members[:index]:
                if all(map(_slots_overlap, slots, earlier_slots)):
                    return earlier_path, path
        return None
    # Comparing all pairs is quadratic, and a table may have 100,000 paths without ranges.
    first_path: dict[tuple[str, ...], str] = {}
    for path, slots in members:
        for numbers in _enumerate_slots(slots):
            if (first := first_path.setdefault(numbers, path)) != path:
                return first, path
    return None


def _slots_overlap(slot: range | str, other_slot: range | str) -> bool:
    if isinstance(slot, str) and isinstance(other_slot, str):
        return slot == other_slot
    numbers, other_numbers = _slot_range(slot), _slot_range(other_slot)
    if numbers.step == other_numbers.step == 1:
        return max(numbers.start, other_numbers.start) < min(numbers.stop, other_numbers.stop)
    shorter, longer = sorted((numbers, other_numbers), key=len)
    return any(number in longer for number in shorter)


def _slot_range(slot: range | str) -> range:
    if isinstance(slot, range):
        return slot
    if len(slot) > 18 or str(int(slot)) != slot:
        return range(0)  # "007" is in no range
    return range(int(slot), int(slot) + 1)


def _enumerate_slots(slots: Iterable[range | str]) -> Iterator[tuple[str, ...]]:
    if not (slots := tuple(slots)):
        yield ()
        return
    for head in map(str, slots[0]) if isinstance(slots[0], range) else (slots[0],):
        for tail in _enumerate_slots(slots[1:]):
            yield (head, *tail)


def _path_error(message: str, path: str, where: str, fix: str) -> InvalidModel:
    return InvalidModel(message, where=f"{where}, tensors.{path!r:.200}", fix=fix)
