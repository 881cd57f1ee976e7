"""The keys of `problem.toml` and `tracks.toml`: accepted values and their meaning.

The loader, its error messages and docs/write-a-problem.md share these tables.
"""

from __future__ import annotations

import re
from typing import Any

from shardlab._files.schema import (
    Field,
    is_count,
    is_list_of,
    is_number,
    is_table,
    is_text,
    is_text_list,
)
from shardlab.errors import LabError
from shardlab.sharding.mesh import parse_mesh

DIFFICULTIES = ("easy", "medium", "hard")
KINDS = ("program", "value")
COLLECTIVES = ("psum", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute")
# What a part can require besides collectives.
CONSTRUCTS = {
    "shard_map": "an argument reaches the result through a shard_map",
    "one_shard_map": "an argument reaches the result through one shard_map, and no second one",
    "sharded_input": "every array of an argument that a shard_map gets is sharded by its in_specs",
    "mesh_axes": "the mesh that a part without `mesh` makes has the names in `axes`",
    "in_body": "nothing is computed from an argument outside of a shard_map that works on shards",
    "matmul_in_body": "no matrix product of an argument is outside of the shard_map's body",
    "drawn_in_body": "no array but random keys is computed outside of the shard_map",
    "explicit_collectives": "the compiler inserts no collective: the program calls all of them",
    "axis_index": "the result depends on the device's own index",
    "placement": "nothing is computed from an argument before a device_put or another sharding",
    "check_vma": "no shard_map has check_vma=False",
}
FLOW_CONSTRUCTS = tuple(name for name in CONSTRUCTS if name not in ("shard_map", "check_vma"))
# Only names: the arguments are looked up in the inputs of the reference.
CALL = re.compile(r"(\w+)\((\w+(?:, ?\w+)*)?\)")
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


# "permuted" is a suffix of our own: the same mesh with its devices in another order.
def _is_mesh(text: str) -> bool:
    try:
        parse_mesh(text.removesuffix(" permuted"))
    except LabError:
        return False
    return True


def _is_call(value: Any) -> bool:
    return isinstance(value, str) and CALL.fullmatch(value) is not None


def _is_slug(text: str) -> bool:
    return SLUG.fullmatch(text) is not None


PROBLEM = {
    "format_version": Field(
        expected="1", is_valid=lambda v: v == 1, meaning="version of this format", is_required=True
    ),
    "content_version": Field(
        expected="a whole number from 1",
        is_valid=lambda v: is_count(v, 1),
        meaning="incremented when the task changes, to recognize older submissions",
        is_required=True,
    ),
    "title": Field(
        expected="text",
        is_valid=is_text,
        meaning="shown in the list; also the heading of the page",
        is_required=True,
    ),
    "difficulty": Field(
        expected="easy, medium or hard",
        is_valid=lambda v: v in DIFFICULTIES,
        meaning="shown in the list",
        is_required=True,
    ),
    "tags": Field(
        expected="a list of strings", is_valid=is_text_list, meaning="topics of the problem"
    ),
    "limits": Field(
        expected="a table", is_valid=is_table, meaning="limits other than the defaults"
    ),
    "parts": Field(
        expected="one table [[parts]] for each function",
        is_valid=lambda v: isinstance(v, list) and len(v) > 0,
        meaning="the functions to judge, in order",
        is_required=True,
    ),
}

PART = {
    "name": Field(expected="text", is_valid=is_text, meaning="shown beside the cases of this part"),
    "call": Field(
        expected="a call such as f(x, mesh)",
        is_valid=_is_call,
        meaning="function and arguments in order; a name is a key of the reference's inputs, "
        "`mesh` is the case's mesh",
        is_required=True,
    ),
    "kind": Field(
        expected="program or value",
        is_valid=lambda v: v in KINDS,
        meaning="a program is traced and run on devices; a value is called with plain values",
    ),
    "axes": Field(
        expected="a list of one or two mesh axis names",
        is_valid=lambda v: is_text_list(v) and 1 <= len(v) <= 2,
        meaning="axis names of the default test meshes, or of the mesh that `mesh_axes` requires",
    ),
    "meshes": Field(
        expected='a list of meshes such as ["data=2", "data=4 permuted"]',
        is_valid=is_list_of(_is_mesh),
        meaning="test meshes instead of the default ones",
    ),
    "simulated_meshes": Field(
        expected='a list of meshes such as ["data=64"]',
        is_valid=is_list_of(_is_mesh),
        meaning="simulated meshes instead of 64 and 512 devices; [] for none",
    ),
    "cases": Field(
        expected="a whole number from 1",
        is_valid=lambda v: is_count(v, 1),
        meaning="number of cases of a value part",
    ),
    "requires": Field(
        expected=f"a list of {', '.join((*CONSTRUCTS, *COLLECTIVES))}",
        is_valid=is_list_of(lambda v: v in (*CONSTRUCTS, *COLLECTIVES)),
        meaning="what the result must be computed with; otherwise the verdict is API",
    ),
    "budget": Field(
        expected="a table",
        is_valid=is_table,
        meaning="limits on communication and memory; verdicts COMM, MEM and API",
    ),
    "rtol": Field(
        expected="a number from 0",
        is_valid=is_number,
        meaning="tolerance relative to the largest value",
    ),
    "atol": Field(expected="a number from 0", is_valid=is_number, meaning="absolute tolerance"),
}

BUDGET = {
    **{
        name: Field(
            expected="a whole number", is_valid=is_count, meaning=f"maximum number of {name}"
        )
        for name in COLLECTIVES
    },
    "calls": Field(
        expected="a whole number",
        is_valid=is_count,
        meaning="maximum number of collectives of any kind",
    ),
    "payload_bytes": Field(
        expected="a whole number",
        is_valid=is_count,
        meaning="maximum bytes of all operands of collectives, per device",
    ),
    "wire_bytes": Field(
        expected="a whole number", is_valid=is_count, meaning="maximum bytes sent, per device"
    ),
    "peak_bytes": Field(
        expected="a whole number", is_valid=is_count, meaning="maximum bytes resident, per device"
    ),
    "eager_bytes": Field(
        expected="a whole number",
        is_valid=is_count,
        meaning="maximum bytes of an unsharded array created on one device outside jit",
    ),
    "body_elements": Field(
        expected="a whole number",
        is_valid=is_count,
        meaning="maximum elements of an array in the body of a shard_map",
    ),
    "matmul_elements": Field(
        expected="a whole number",
        is_valid=is_count,
        meaning="maximum elements of an operand of a matrix product, if an argument reaches it",
    ),
}

LIMITS = {
    "wall_seconds": Field(
        expected="a number", is_valid=is_number, meaning="elapsed time of a submission; default 60"
    ),
    "cpu_seconds": Field(
        expected="a number",
        is_valid=is_number,
        meaning="processor time of a submission; default 20",
    ),
    "memory_bytes": Field(
        expected="a whole number", is_valid=is_count, meaning="memory of the submission's process"
    ),
}

TRACKS = {
    "tracks": Field(
        expected="one table [[tracks]] for each track",
        is_valid=lambda v: isinstance(v, list),
        meaning="the tracks, in the order in which they are listed",
        is_required=True,
    ),
    "prerequisites": Field(
        expected="a table", is_valid=is_table, meaning="slug = [slugs to solve before it]"
    ),
}

TRACK = {
    "folder": Field(
        expected="the name of a folder",
        is_valid=is_text,
        meaning="the folder of its problems",
        is_required=True,
    ),
    "title": Field(
        expected="text", is_valid=is_text, meaning="shown in the list", is_required=True
    ),
    "problems": Field(
        expected="a list of slugs such as ['split-the-rows']",
        is_valid=is_list_of(_is_slug),
        meaning="the folders of its problems, in order",
        is_required=True,
    ),
}

AUDIT = {
    "equivalent": Field(
        expected="one table [[equivalent]] for each mutant",
        is_valid=lambda v: isinstance(v, list),
        meaning="mutants that are right too",
    ),
    "inputs": Field(
        expected="one table [[inputs]] for each argument",
        is_valid=lambda v: isinstance(v, list),
        meaning="arguments that the statement restricts",
    ),
}

_REASON = Field(
    expected="a sentence", is_valid=is_text, meaning="why no case can decide", is_required=True
)

AUDIT_MUTANT = {
    "mutant": Field(
        expected="the name of a mutant",
        is_valid=is_text,
        meaning="as the audit prints it; `*` stands for any text",
        is_required=True,
    ),
    "reason": _REASON,
}

AUDIT_INPUT = {
    "argument": Field(
        expected="an argument such as params['w']",
        is_valid=is_text,
        meaning="as the audit prints it; `*` stands for any text",
        is_required=True,
    ),
    "rule": Field(
        expected="a rule such as inputs.fixed",
        is_valid=lambda v: is_text(v) and v.startswith("inputs."),
        meaning="the rule that does not apply to it",
        is_required=True,
    ),
    "reason": _REASON,
}
