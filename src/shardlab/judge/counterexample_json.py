"""The minimal failing case as JSON for a page that draws it.

    {
      "call": "total(x, mesh)", "part": 1, "number": 3, "name": "data=2",
      "mesh": [["data", 2]],                   empty if the part has none
      "inputs": [{"name": "x", "text": "float32[4] [3 4 1 2]"}],
      "expected": "", "returned": "",          of a part of plain values
      "collectives": [{"op": "psum", "count": 1, "payload_bytes": 4, "wire_bytes": 4}],
      "outputs": [{
        "name": "result", "array": "float32[]", "expected": "float32[] 10", "spec": "P()",
        "n_devices": 2,                        more than are listed, if there are many
        "devices": [{
          "device": 0, "place": "data=0", "coordinate": [0], "index": "", "state": "wrong",
          "holds": "12", "expected": "10",
          "elements": {"shape": [], "holds": ["12"], "expected": ["10"], "wrong": [0]}
        }]
      }],
      "is_right_everywhere": false,            then a verdict is about something else than values
      "verdicts": [{"code": "WA", ...}]
    }

`state` is right, wrong, or open if many values would be right. `elements` is null for a shard that
is too large to draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardlab._text.printable import printable_data
from shardlab.judge.judgement import CaseResult


def counterexample_json(case: CaseResult) -> dict[str, Any]:
    """Return the case as JSON data. Every text in it is printable: it quotes the submission."""
    facts = printable_data(case.facts)
    outputs = [_output_json(output) for output in facts.get("outputs", ())]
    states = [device["state"] for output in outputs for device in output["devices"]]
    return {
        "call": facts.get("call", case.name),
        "part": case.part,
        "number": case.number,
        "name": case.name,
        "mesh": facts.get("mesh", []),
        "inputs": facts.get("inputs", []),
        "expected": facts.get("expected", ""),
        "returned": facts.get("got", ""),
        "collectives": facts.get("collectives", []),
        "outputs": outputs,
        "is_right_everywhere": bool(states) and set(states) == {"right"},
        "verdicts": [printable_data(verdict.to_json()) for verdict in case.verdicts],
    }


def _output_json(output: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": output["name"],
        "array": output["array"],
        "expected": output["expected"],
        "spec": output["asked"],
        "n_devices": output["n_devices"],
        "devices": [_device_json(device) for device in output["devices"]],
    }


def _device_json(device: Mapping[str, Any]) -> dict[str, Any]:
    states = {None: "open", False: "right", True: "wrong"}
    return {
        "device": device["device"],
        "place": device["place"],
        # Judgements of earlier versions have neither coordinates nor elements.
        "coordinate": device.get("coordinate", []),
        "index": device["index"],
        "state": states[device["is_wrong"]],
        "holds": device["holds"],
        "expected": device["should"] if device["is_wrong"] else "",
        "elements": device.get("elements"),
    }
