"""A model as a table in TOML or JSON: presets are such files, and people may write their own.

>>> print(parse_table('''
... name = "tiny"
... [tensors]
... "layers.{0..1}.up.weight" = "bf16[64,16]"
... "embed.weight" = { array = "bf16[100,16]", axes = ["vocab", "embed"] }
... ''', "tiny.toml").n_parameters)
3648

Paths with ranges: whether each is written well, and whether two of them mean one tensor.
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
from shardlab.planner.tensor_group import RANGE, LogicalAxes, TensorGroup, parse_tensor_group
from shardlab.planner.model import Architecture, Model
from shardlab.planner.models.maxtext import is_sharding_dump, model_from_sharding_dump
from shardlab.sharding.dtype import Dtype, parse_dtype
from shardlab.sharding.shape import parse_array, parse_shape
from shardlab.sharding.spec import Spec, parse_spec

MAX_TENSORS = 1_000_000  # of one table; a range is quickly written too large
_SLOT = re.compile(r"\{[0-9]+\.\.[0-9]+\}|[0-9]+")
_LONG = re.compile(r"\{0*[0-9]{1,9}\.\.0*[1-9][0-9]{9,}\}")  # a range of more than can be
_FEW = 64  # paths that are compared by pairs; more are written out

Slots = tuple[range | str, ...]  # of a path: the numbers in it, as ranges or as they are written


def check_paths(tensors: Mapping[str, Any], where: str) -> None:
    """Raise where a path is not well written, or two paths stand for the same tensor."""
    groups: dict[str, list[tuple[str, Slots]]] = {}
    total = 0
    for path in tensors:
        slots = _slots(path, where)
        total += _n_paths(slots)
        if total > MAX_TENSORS:
            what = f"There are more than {MAX_TENSORS:,} tensors, counted up to {path!r:.200}."
            raise _bad(what, path, where, "smaller ranges.")
        groups.setdefault(_SLOT.sub("#", path), []).append((path, slots))
    for group in groups.values():
        if len(group) > 1 and (two := _in_common(group)):
            what = f"Paths {two[0]!r:.200} and {two[1]!r:.200} stand for the same tensors."
            raise _bad(what, two[1], where, "ranges that do not overlap.")


def _slots(path: str, where: str) -> Slots:
    """Return the numbers of a path, each range in braces as a range."""
    if not path or not path.isprintable() or len(path) > 1_000:
        raise _bad(f"{path!r:.80} is not a path.", path, where, "a path such as layers.0.up.")
    if _LONG.search(path):
        what = f"There are more than {MAX_TENSORS:,} tensors in {path!r:.200}."
        raise _bad(what, path, where, "smaller ranges.")
    if "{" in RANGE.sub("", path) or "}" in RANGE.sub("", path):
        raise _bad(f"Path {path!r:.200} has braces.", path, where, "a range such as {0..31}.")
    return tuple(_slot(found, path, where) for found in _SLOT.finditer(path))


def _slot(found: re.Match[str], path: str, where: str) -> range | str:
    if not found[0].startswith("{"):
        return found[0]
    first, last = found[0][1:-1].split("..")
    if str(int(first)) != first or str(int(last)) != last:
        raise _bad(f"{found[0]} has leading zeros.", path, where, "{0..31}.")
    if int(first) > int(last):
        raise _bad(f"{found[0]} goes down.", path, where, f"{{{last}..{first}}}.")
    beside = path[found.start() - 1 : found.start()] + path[found.end() : found.end() + 1]
    if re.search(r"[0-9{}]", beside):
        what = f"{found[0]} stands beside another number."
        raise _bad(what, path, where, "a range between separators, such as layers.{0..31}.up.")
    return range(int(first), int(last) + 1)


def _n_paths(slots: Slots) -> int:
    return prod(len(each) for each in slots if isinstance(each, range))


def _in_common(group: Sequence[tuple[str, Slots]]) -> tuple[str, str] | None:
    """Return two paths of one form that stand for a common tensor, if there are two."""
    if len(group) <= _FEW:
        for at, (path, slots) in enumerate(group):
            for other, others in group[:at]:
                if all(_overlap(one, two) for one, two in zip(slots, others, strict=True)):
                    return other, path
        return None
    seen: dict[tuple[str, ...], str] = {}
    for path, slots in group:
        for numbers in _written_out(slots):
            if (first := seen.setdefault(numbers, path)) != path:
                return first, path
    return None


def _overlap(one: range | str, two: range | str) -> bool:
    if isinstance(one, str) and isinstance(two, str):
        return one == two
    one, two = _as_range(one), _as_range(two)
    return max(one.start, two.start) < min(one.stop, two.stop)


def _as_range(slot: range | str) -> range:
    if isinstance(slot, range):
        return slot
    if len(slot) > 18 or str(int(slot)) != slot:
        return range(0)  # "007" is no number of a range
    return range(int(slot), int(slot) + 1)


def _written_out(slots: Iterable[range | str]) -> Iterator[tuple[str, ...]]:
    if not (slots := tuple(slots)):
        yield ()
        return
    for head in map(str, slots[0]) if isinstance(slots[0], range) else (slots[0],):
        for tail in _written_out(slots[1:]):
            yield (head, *tail)


def _bad(what: str, path: str, where: str, fix: str) -> InvalidModel:
    return InvalidModel(what, where=f"{where}, tensors.{path!r:.200}", fix=fix)


_MAX_BYTES = 16_000_000
_MAX_ELEMENTS = 1 << 63  # of one tensor


def _is_name(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.isprintable())


def _are_names(values: list[Any]) -> bool:
    return all(
        _is_name(each) or (isinstance(each, list) and all(map(_is_name, each))) for each in values
    )


TABLE = {
    "name": Field(
        wanted="text", fits=is_text, meaning="of the model, as the plan shows it", is_required=True
    ),
    "tensors": Field(
        wanted='a table such as {"layers.{0..31}.up.weight" = "bf16[14336,4096]"}',
        fits=lambda v: is_table(v) and len(v) > 0,
        meaning="its tensors by path; `{0..31}` in a path stands for the numbers 0 to 31",
        is_required=True,
    ),
    "architecture": Field(
        wanted="a table",
        fits=is_table,
        meaning="its measures, from which activations and caches are told",
    ),
    "also": Field(
        wanted="a list of texts",
        fits=is_text_list,
        meaning="other names of the model; presets go by them",
    ),
    "note": Field(wanted="text", fits=is_text, meaning="a remark that the plan repeats"),
    "published": Field(
        wanted="a whole number",
        fits=is_count,
        meaning="parameters, as whoever released it counts them",
    ),
    "published_source": Field(wanted="text", fits=is_text, meaning="where that count is written"),
    "config_source": Field(wanted="text", fits=is_text, meaning="where its measures are written"),
    "n_tensors": Field(
        wanted="a whole number",
        fits=is_count,
        meaning="how many tensors there are; another number is an error",
    ),
    "n_bytes": Field(
        wanted="a whole number", fits=is_count, meaning="what they take; another number is an error"
    ),
}

TENSOR = {
    "array": Field(
        wanted='text such as "bf16[4096,1024]"', fits=is_text, meaning="dtype and shape together"
    ),
    "shape": Field(
        wanted="a list of sizes such as [4096, 1024]",
        fits=lambda v: isinstance(v, list) and not any(isinstance(size, bool) for size in v),
        meaning="in place of array",
    ),
    "dtype": Field(
        wanted='text such as "bf16"',
        fits=is_text,
        meaning="beside shape; float32 where it is left out",
    ),
    "axes": Field(
        wanted='a list of texts such as ["vocab", "embed"]',
        fits=lambda v: isinstance(v, list) and all(map(_is_name, v)),
        meaning='logical names of the array axes, "" for one without; strategies and rules go by them',
    ),
    "spec": Field(
        wanted='text such as "None,model", or a list',
        fits=lambda v: _is_name(v) if isinstance(v, str) else isinstance(v, list) and _are_names(v),
        meaning="the sharding that the model itself asks for",
    ),
}

# key by which a JSON file is known that people may take for a table -> what it is, what to do
_OTHER_FILES = {
    "model_type": ("a model's configuration", "the folder that it lies in, with its weights."),
    "weight_map": ("an index of safetensors files", "a name that ends in .safetensors.index.json."),
}


def _is_size(value: Any) -> bool:
    return is_count(value, 1)


# measure of an architecture -> what it counts
MEASURES = {
    "layers": "of the decoder",
    "hidden": "width of what passes from layer to layer",
    "heads": "of queries",
    "kv_heads": "of keys and values",
    "head_dim": "width of one head",
    "ffn": "inner width of the MLP, of one expert where there are experts",
    "vocab": "rows of the embedding",
    "tied_embeddings": "whether the output layer is the embedding again",
    "experts": "in a layer; 0 of a dense model",
    "top_k": "experts that a token passes",
    "shared_experts": "experts that every token passes",
    "dense_layers": "the first layers of a mixture, which have no experts",
    "dense_ffn": "inner width of the MLP in those",
    "kv_lora_rank": "what latent attention caches in place of heads",
    "rope_head_dim": "what it caches beside, for positions",
    "gated": "whether two products come before the activation, as in SwiGLU",
    "window": "tokens that local layers look back over, and cache",
    "window_layers": "how many layers are local",
    "v_head_dim": "width of one head of values, where it is not that of keys",
}
ARCHITECTURE = {
    each.name: Field(
        wanted="true or false", fits=lambda v: isinstance(v, bool), meaning=MEASURES[each.name]
    )
    if each.type == "bool"
    else Field(wanted="a whole number", fits=is_count, meaning=MEASURES[each.name])
    if each.default is not MISSING
    else Field(
        wanted="a whole number from 1 on",
        fits=_is_size,
        meaning=MEASURES[each.name],
        is_required=True,
    )
    for each in fields(Architecture)
}


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
        raise _unread("TOML", error, where) from None
    return model_from_table(data, where)


def parse_json(text: str, where: str) -> Model:
    """Return the model that a JSON text describes."""
    try:
        data = json.loads(text, object_pairs_hook=reject_duplicate_keys)
    except (ValueError, RecursionError) as error:
        raise _unread("JSON", error, where) from None
    for key, said in _OTHER_FILES.items():
        if isinstance(data, Mapping) and key in data and "tensors" not in data:
            raise InvalidModel(
                f"This is {said[0]}, not a table of tensors.", where=where, fix=said[1]
            )
    return (
        model_from_sharding_dump(data, where)
        if is_sharding_dump(data)
        else model_from_table(data, where)
    )


def _unread(kind: str, error: Exception, where: str) -> InvalidModel:
    reason = f"{error!s:.200}"
    if isinstance(error, RecursionError):
        reason = "too many brackets inside brackets"
    elif "integer string conversion" in reason:  # Python's words on what to set would mislead
        reason = "a number has too many digits"
    return InvalidModel(f"This is not {kind}: {reason}.", where=where, fix="mend that place.")


def model_from_table(data: Any, where: str) -> Model:
    """Return the model of a table; each mistake is named with its place."""
    check_fields(data, TABLE, where, InvalidModel)
    check_paths(data["tensors"], where)
    architecture = None
    if "architecture" in data:
        found = check_fields(
            data["architecture"], ARCHITECTURE, where, InvalidModel, "architecture"
        )
        architecture = Architecture(**found)
    model = Model(
        name=data["name"],
        groups=tuple(_family(path, entry, where) for path, entry in data["tensors"].items()),
        source=where,
        architecture=architecture,
        published=data.get("published"),
        notes=(data["note"],) if "note" in data else (),
        details={key: value for key, value in data.items() if key.endswith("_source")},
    )
    for key in ("n_tensors", "n_bytes"):
        if key in data and data[key] != getattr(model, key):
            what = f"{key!r} is {data[key]:,}, and the tensors have {getattr(model, key):,}."
            raise InvalidModel(what, where=f"{where}, {key}", fix="correct it, or leave it out.")
    return model


def _family(path: str, entry: Any, where: str) -> TensorGroup:
    place = f"{where}, tensors.{path!r:.200}"
    try:
        shape, dtype, axes, spec = _parts(entry, where, path)
    except InvalidModel:
        raise
    except LabError as error:  # of a shape, a dtype or a spec
        inner = f": {error.where}" if error.where else ""
        raise InvalidModel(error.what, where=place + inner, fix=error.fix) from None
    group = parse_tensor_group(path, shape, dtype, axes, spec)
    if group.n_elements >= _MAX_ELEMENTS:
        what = f"Tensor {path!r:.200} has 2**63 elements or more."
        raise InvalidModel(what, where=place, fix="sizes that an array can have.")
    for name, given in (("axes", axes), ("spec", spec)):
        if given is not None and (
            len(given) > len(shape) or (name == "axes" and len(given) < len(shape))
        ):
            what = f"{name!r} is {given!s:.200}, and the shape is {shape!s:.200}."
            raise InvalidModel(what, where=f"{place}.{name}", fix="one entry for each array axis.")
    return group


def _parts(
    entry: Any, where: str, path: str
) -> tuple[tuple[int, ...], Dtype, LogicalAxes | None, Spec | None]:
    if is_text(entry):
        return *parse_array(entry), None, None
    place = f"tensors.{path!r:.200}"
    check_fields(entry, TENSOR, where, InvalidModel, place)
    if ("array" in entry) == ("shape" in entry) or ("array" in entry and "dtype" in entry):
        what = f"Tensor {path!r:.200} has {', '.join(entry) or 'no keys'}."
        raise InvalidModel(
            what, where=f"{where}, {place}", fix='array = "bf16[8,4]", or shape and dtype.'
        )
    if "array" in entry:
        shape, dtype = parse_array(entry["array"])
    else:
        shape, dtype = parse_shape(tuple(entry["shape"])), parse_dtype(entry.get("dtype", "f32"))
    axes = tuple(each or None for each in entry["axes"]) if "axes" in entry else None
    return shape, dtype, axes, parse_spec(entry["spec"]) if "spec" in entry else None
