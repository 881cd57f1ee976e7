"""What the planner's API accepts and returns. Every text, list and number has a limit."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from shardlab.server.api.api_models import ApiModel

MAX_HEADER_CHARACTERS = 3 * 2**20  # of all headers together; the body of a request has 4 MiB
MAX_CONFIG_CHARACTERS = 200_000
MAX_RULES_CHARACTERS = 50_000
MAX_COUNT = 2**31 - 1
MAX_DEVICES = 2**20

Name = Annotated[str, StringConstraints(max_length=200)]
MeshText = Annotated[str, StringConstraints(max_length=400)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]


class UploadedHeader(ApiModel):
    """The header of one safetensors file; the weights stay on the person's machine."""

    file: Name
    header: Annotated[str, StringConstraints(max_length=MAX_HEADER_CHARACTERS)]
    data_bytes: int = Field(ge=0, le=2**50, description="Bytes of the file after the header.")


class UploadedModel(ApiModel):
    """A model from files: headers of safetensors files, a config.json, or both."""

    headers: list[UploadedHeader] = Field(default_factory=list, max_length=200)
    config: Annotated[str, StringConstraints(max_length=MAX_CONFIG_CHARACTERS)] | None = None


class ModelOptions(ApiModel):
    """A model and its workload: what plans and advice have in common."""

    model: Name = Field(default="", description="A preset; empty with an upload.")
    upload: UploadedModel | None = None
    hardware: Name | None = None
    optimizer: Name = "none"
    policy: Name | None = None
    batch: Count | None = None
    sequence: Count | None = None
    microbatch: Count | None = None
    remat: Name | None = None
    headroom: float = Field(default=0.1, ge=0, lt=1)


class PlanBody(ModelOptions):
    """A model, a mesh and how to shard it."""

    mesh: MeshText
    strategy: Name | None = None
    rules: Annotated[str, StringConstraints(max_length=MAX_RULES_CHARACTERS)] | None = Field(
        default=None, description="Rules as TOML, instead of a strategy."
    )


class AdviceBody(ModelOptions):
    """A model and a number of devices to find a mesh for."""

    hardware: Name
    devices: int = Field(ge=1, le=MAX_DEVICES)
    optimizer: Name = "adamw"


class KindView(BaseModel):
    """Bytes of one kind of memory on the fullest device."""

    kind: str
    label: str
    bytes_per_device: int


class BudgetView(BaseModel):
    """The memory of one device."""

    hardware: str
    hbm_bytes: int
    usable_bytes: int
    headroom: float


class RowView(BaseModel):
    """Tensors of one shape under one rule."""

    path: str
    numbers: str
    n_tensors: int
    array_type: str = Field(description="Such as bf16[8192@fsdp,1024@tensor].")
    spec: str
    mesh_axes: list[str] = Field(description="That shard the parameter.")
    shard_shape: list[int]
    n_replicas: int
    bytes_by_kind: dict[str, int]
    bytes_per_device: int
    wasted_bytes: int
    rule: str
    skipped: list[str]


class ItemView(BaseModel):
    """Memory that belongs to no tensor, with its formula."""

    kind: str
    name: str
    bytes_per_device: int
    formula: str


class FindingView(BaseModel):
    """One problem of a plan and how to fix it."""

    code: str
    severity: Literal["error", "warning", "info"]
    what: str
    where: str
    fix: str
    shows: list[str]


class RuleView(BaseModel):
    """A rule: given by the person, or derived from the strategy."""

    pattern: str
    spec: str


class PlanView(BaseModel):
    """What each device stores."""

    model: str
    source: str
    headline: str
    fits: bool | None
    ok: bool = Field(description="Whether no finding is an error; JAX may reject what fits.")
    mesh: list[tuple[str, int]]
    n_devices: int
    n_parameters: int
    choices: dict[str, str]
    bytes_per_device: int
    kinds: list[KindView]
    budget: BudgetView | None
    rows: list[RowView] = Field(description="The largest first, at most 400.")
    n_rows: int
    items: list[ItemView]
    findings: list[FindingView]
    rules: list[RuleView]
    has_derived_rules: bool
    rules_text: str
    notes: list[str]


class CandidateView(BaseModel):
    """One mesh with its best strategy."""

    mesh: str
    strategy: str
    remat: str
    n_microbatches: int
    bytes_per_device: int
    step_seconds: float | None
    communication_seconds: float | None
    mfu: float | None
    reason: str
    loss_kind: str


class AdviceView(BaseModel):
    """The meshes that fit, best first, and why others do not."""

    model: str
    headline: str
    hardware: str
    n_devices: int
    usable_bytes: int
    order: str = Field(description="Why step times alone do not order the rows; may be empty.")
    ranked: list[CandidateView]
    n_ranked: int
    others: list[CandidateView]
    n_others: int
    sufficient_devices: int
    notes: list[str]
    command: str


class PlannerChoices(BaseModel):
    """What the planner knows: for lists in a page."""

    presets: list[str]
    hardware: list[str]
    strategies: list[str]
    optimizers: list[str]
    remat_policies: list[str]
