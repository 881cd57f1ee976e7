"""Plans and advice for the pages: from a checked body to a plan, and to the view that is sent.

Nothing here opens a file that a request names: a model is a preset or an uploaded header, a chip is
one of the table, rules are text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shardlab._files.json_reader import reject_duplicate_keys
from shardlab._text.nearest import unknown_name_text
from shardlab.errors import InvalidModel, UnknownHardware, UnknownModel
from shardlab.hardware.chips import hardware_names
from shardlab.planner.advice.advice import Advice, Candidate
from shardlab.planner.advice.advice_text import advice_headline, order_text
from shardlab.planner.advice.make_advice import advise
from shardlab.planner.make_plan import plan
from shardlab.planner.memory.workload import REMAT_POLICIES, Workload
from shardlab.planner.model import Model
from shardlab.planner.models.architecture import with_architecture
from shardlab.planner.models.hf_config import model_from_config, parse_config
from shardlab.planner.models.presets import find_preset, load_preset, preset_names
from shardlab.planner.models.safetensors import parse_header
from shardlab.planner.plan import KINDS, Plan, PlanRow
from shardlab.planner.plan_text import plan_headline
from shardlab.planner.rules.rules import Rules
from shardlab.planner.rules.rules_file import parse_rules_text, rules_text
from shardlab.planner.snapshots.golden_file import rules_of_plan
from shardlab.planner.tensor_group import Tensor, group_tensors
from shardlab.planner.tpu_slices import is_tpu_slice, parse_tpu_slice
from shardlab.server.api.plan_models import (
    MAX_HEADER_CHARACTERS,
    AdviceBody,
    AdviceView,
    BudgetView,
    CandidateView,
    FindingView,
    ItemView,
    KindView,
    ModelOptions,
    PlanBody,
    PlannerChoices,
    PlanView,
    RowView,
    RuleView,
    UploadedModel,
)

_MAX_ROWS = 400
_MAX_FINDINGS = 100
_MAX_CANDIDATES = 30
_MAX_TENSORS = 100_000
KIND_LABELS = {
    "parameters": "Parameters",
    "gradients": "Gradients",
    "optimizer": "Optimizer states",
    "activations": "Activations",
    "kv_cache": "KV cache",
}
STRATEGIES = (
    "fsdp",
    "tensor",
    "fsdp+tensor",
    "fsdp+expert",
    "fsdp+expert+tensor",
    "pipeline+tensor",
    "data-parallel",
    "zero1",
    "zero2",
    "zero3",
)
OPTIMIZERS = ("none", "adamw", "adam", "adafactor", "sgd", "lion", "muon")


def planner_choices() -> PlannerChoices:
    """Return the names that the form of the page offers."""
    return PlannerChoices(
        presets=list(preset_names()),
        hardware=list(hardware_names()),
        strategies=list(STRATEGIES),
        optimizers=list(OPTIMIZERS),
        remat_policies=list(REMAT_POLICIES),
    )


def make_plan(body: PlanBody) -> Plan:
    """Return the plan of a body. Raises `LabError`."""
    rules: Rules | None = None
    if body.rules and body.rules.strip():
        rules = parse_rules_text(body.rules.replace("\r\n", "\n"), "rules")
    return plan(
        load_requested_model(body),
        body.mesh,
        rules=rules,
        strategy=body.strategy or None,
        hardware=_check_hardware(body.hardware),
        optimizer=body.optimizer or "none",
        policy=body.policy or None,
        workload=_workload(body),
        headroom=body.headroom,
    )


def make_advice_view(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the view of advice as plain data; runs in a worker."""
    body = AdviceBody.model_validate(payload)
    hardware = _check_hardware(body.hardware)
    advice = advise(
        load_requested_model(body),
        hardware or "",
        body.devices,
        batch=body.batch,
        sequence=body.sequence,
        microbatch=body.microbatch,
        optimizer=body.optimizer,
        policy=body.policy or None,
        remat=body.remat or None,
        headroom=body.headroom,
    )
    return view_advice(advice).model_dump()


def check_advice_body(body: AdviceBody) -> None:
    """Raise the error of a model or a chip that is not known, before anything is queued."""
    load_requested_model(body)
    _check_hardware(body.hardware)


def _workload(body: ModelOptions) -> Workload | None:
    if body.batch is None and body.sequence is None:
        return None
    return Workload(
        batch=body.batch or 1,
        sequence=body.sequence or 1,
        microbatch=body.microbatch,
        remat=body.remat or "full",
    )


def _check_hardware(name: str | None) -> str | None:
    """Return the name of a chip or of a TPU slice. A path must never reach `parse_hardware`."""
    if not name:
        return None
    if name in hardware_names():
        return name
    if is_tpu_slice(name):
        parse_tpu_slice(name)
        return name
    raise UnknownHardware(
        unknown_name_text("hardware", name, hardware_names()),
        fix="one of these, or a TPU slice such as v5p-1024.",
    )


# --------------------------------------------------------------------------------- models


def load_requested_model(body: ModelOptions) -> Model:
    """Return the preset, or the model of the uploaded headers."""
    if body.upload is None:
        if (preset := find_preset(body.model)) is not None:
            return preset
        raise UnknownModel(
            unknown_name_text("preset", body.model, preset_names()),
            fix="one of these, or the .safetensors file of another model.",
        )
    if not body.upload.headers:
        return _model_of_config(body.upload.config)
    text = body.upload.config
    architecture = None if text is None else parse_config(_parse_json(text))
    return with_architecture(_model_of_headers(body.upload), architecture)


def _model_of_headers(upload: UploadedModel) -> Model:
    if sum(len(file.header) for file in upload.headers) > MAX_HEADER_CHARACTERS:
        raise InvalidModel(
            f"The headers have more than {MAX_HEADER_CHARACTERS:,} characters.",
            fix="shardlab plan FOLDER on the command line reads headers of any size.",
        )
    tensors: dict[str, Tensor] = {}
    for file in upload.headers:
        for tensor in parse_header(file.header.encode(), file.data_bytes, file.file):
            if tensor.path in tensors:
                raise InvalidModel(
                    f"Tensor {tensor.path!r:.80} is in two files.",
                    where=file.file,
                    fix="choose the files of one model, each once.",
                )
            tensors[tensor.path] = tensor
    if not tensors or len(tensors) > _MAX_TENSORS:
        raise InvalidModel(
            f"The files have {len(tensors):,} tensors.",
            fix=f"files with 1 to {_MAX_TENSORS:,} tensors.",
        )
    first = upload.headers[0].file.removesuffix(".safetensors")
    n_files = len(upload.headers)
    source = "the header of the uploaded file" if n_files == 1 else f"{n_files} uploaded headers"
    return Model(name=first or "model", groups=group_tensors(tensors.values()), source=source)


def _parse_json(config: str) -> Any:
    try:
        return json.loads(config, object_pairs_hook=reject_duplicate_keys)
    except (ValueError, RecursionError) as error:
        raise InvalidModel(
            f"config.json is not valid JSON: {error!s:.200}", fix="the config.json of a model."
        ) from None


def _model_of_config(config: str | None) -> Model:
    """Return the model of a config.json that came without tensors.

    A preset of the same architecture has the names and dtypes of its checkpoint. Without one, the
    tensors follow from the sizes, as in `shardlab plan config.json`.
    """
    if config is None:
        raise InvalidModel("There are no files.", fix="a .safetensors file, or a config.json.")
    try:
        model = model_from_config(_parse_json(config), "the uploaded config.json")
    except InvalidModel as error:
        fix = error.fix or "a config.json of these, or also the .safetensors files of the model."
        raise InvalidModel(error.what, where="config.json", fix=fix) from None
    for name in preset_names():
        preset = load_preset(name)
        if preset.architecture == model.architecture:
            note = f"config.json has the architecture of the preset {name}, whose tensors are used."
            return replace(preset, notes=(*preset.notes, note))
    return model


# ---------------------------------------------------------------------------------- views


def view_plan(result: Plan) -> PlanView:
    """Return a plan as the page shows it."""
    rows = sorted(result.rows, key=lambda row: -row.bytes_per_device)
    budget = result.budget
    return PlanView(
        model=result.model,
        source=result.source,
        headline=plan_headline(result),
        fits=result.fits,
        ok=result.ok,
        mesh=list(result.mesh),
        n_devices=result.n_devices,
        n_parameters=result.n_parameters,
        choices={name: result.choice_text(name) for name in result.choices},
        bytes_per_device=result.bytes_per_device,
        kinds=[
            KindView(kind=kind, label=KIND_LABELS[kind], bytes_per_device=result.bytes_of(kind))
            for kind in KINDS
        ],
        budget=None
        if budget is None
        else BudgetView(
            hardware=budget.hardware,
            hbm_bytes=budget.hbm_bytes,
            usable_bytes=budget.usable_bytes,
            headroom=budget.headroom,
        ),
        rows=[_view_row(result, row) for row in rows[:_MAX_ROWS]],
        n_rows=len(rows),
        items=[ItemView(**vars(item)) for item in result.items],
        findings=list(_view_findings(result)),
        rules=[RuleView(pattern=rule.pattern, spec=rule.spec_text) for rule in result.rules],
        has_derived_rules=result.has_derived_rules,
        rules_text=rules_text(rules_of_plan(result)),
        notes=list(result.notes),
    )


def _view_row(result: Plan, row: PlanRow) -> RowView:
    sizes = dict(result.mesh)
    parameter = row.parameter
    return RowView(
        path=row.path,
        numbers=row.numbers,
        n_tensors=row.n_tensors,
        array_type=result.array_text(parameter),
        spec=str(parameter.spec),
        mesh_axes=[name for name in parameter.spec.mesh_axes if sizes.get(name, 1) > 1],
        shard_shape=list(parameter.shard_shape),
        n_replicas=parameter.n_replicas,
        bytes_by_kind={kind: size for kind in KINDS if (size := row.bytes_of(kind))},
        bytes_per_device=row.bytes_per_device,
        wasted_bytes=round(row.wasted_bytes),
        rule=row.rule,
        skipped=[str(skipped) for skipped in row.skipped],
    )


def _view_findings(result: Plan) -> Iterator[FindingView]:
    for finding in result.findings[:_MAX_FINDINGS]:
        yield FindingView(
            code=finding.code,
            severity=finding.severity,
            what=finding.what,
            where="" if finding.where is None else str(finding.where),
            fix=finding.fix,
            shows=list(finding.shows),
        )


def view_advice(advice: Advice) -> AdviceView:
    """Return advice as the page shows it."""
    return AdviceView(
        model=advice.model,
        headline=advice_headline(advice),
        hardware=advice.hardware,
        n_devices=advice.n_devices,
        usable_bytes=advice.budget.usable_bytes,
        order=order_text(advice),
        ranked=[_view_candidate(candidate) for candidate in advice.ranked[:_MAX_CANDIDATES]],
        n_ranked=len(advice.ranked),
        others=[_view_candidate(candidate) for candidate in advice.others[:_MAX_CANDIDATES]],
        n_others=len(advice.others),
        sufficient_devices=advice.sufficient_devices,
        notes=list(advice.notes),
        command=advice.command,
    )


def _view_candidate(candidate: Candidate) -> CandidateView:
    step = candidate.step
    return CandidateView(
        mesh=candidate.mesh_text,
        strategy=candidate.strategy,
        remat=candidate.remat,
        n_microbatches=candidate.n_microbatches,
        bytes_per_device=candidate.bytes_per_device,
        step_seconds=None if step is None else step.expected,
        communication_seconds=None if step is None else step.communication_seconds,
        mfu=None if step is None else step.utilization(step.expected),
        reason=candidate.reason,
        loss_kind=candidate.loss_kind,
    )
