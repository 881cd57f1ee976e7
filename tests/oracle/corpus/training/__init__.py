"""Training programs as people write them, each with the bugs that people make in it.

A program is a module with `step`, its `example_args()`, a `MESH`, and `reference`: what `step` must
compute, without a mesh. Its `BUGS` are changes of its source. There are four sets: the checks were
tuned on `FIRST`, then on `SECOND`, `THIRD` and `FOURTH`. Each but the first was measured before any
change of the checks: that figure is what a new program gets.
"""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from training.bug import Bug

FOLDER = Path(__file__).parent
FIRST = (
    "dp_adamw",
    "dp_accumulation",
    "dp_batchnorm_dropout",
    "tp_blocks",
    "tp_attention",
    "tp_vocabulary",
    "fsdp_adam",
    "fsdp_scanned_layers",
    "pipeline_one_stage_per_device",
    "pipeline_layers",
    "moe_all_to_all",
    "moe_local_experts",
    "ring_attention",
    "ring_attention_training",
)
SECOND = (
    "dp_loss_scale",
    "dp_contrastive",
    "tp_megatron",
    "fsdp_replicated_groups",
    "pipeline_with_data",
    "moe_top2",
    "ring_sequence_block",
)
THIRD = (
    "dp_bf16_dropout",
    "dp_ema_clip",
    "tp_gqa_rope",
    "tp_sequence_parallel",
    "fsdp_hybrid_scan",
    "fsdp_jit_shardings",
    "pipeline_1f1b",
    "pipeline_gpipe_remat",
    "moe_shared_expert",
    "moe_switch_capacity",
    "ring_gqa_rope",
    "ring_packed_documents",
)
FOURTH = (
    "dp_dynamic_loss_scale",
    "dp_ema_accumulated",
    "tp_clip_global_norm",
    "tp_parallel_block",
    "tp_sequence_norms",
    "fsdp_zero1_slices",
    "pipeline_circular",
    "pipeline_loss_on_last_stage",
    "moe_expert_choice",
    "moe_psum_combine",
    "ring_collective_matmul",
    "ring_logsumexp",
)
ALL_SETS = FIRST + SECOND + THIRD + FOURTH
_BUGS_MARK = "# " + 91 * "-" + " bugs\n"


@dataclass(frozen=True)
class Program:
    """One program of the corpus: right, or with one bug."""

    module_name: str
    bug: Bug | None = None

    @property
    def name(self) -> str:
        return f"{self.module_name}-{self.bug.name}" if self.bug else self.module_name

    @property
    def family(self) -> str:
        return self.module_name.split("_")[0]

    def load(self) -> ModuleType:
        """Import the program, with its bug in the source."""
        path = FOLDER / f"{self.module_name}.py"
        source = path.read_text().split(_BUGS_MARK)[0]
        if self.bug:
            source = self.bug.apply(source)
        # A file name of its own, so that the lines of a finding are those of this source.
        file = str(path.with_name(f"{self.name}.py"))
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        spec = importlib.util.spec_from_loader(f"corpus_{self.name}", None)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = module  # dataclasses look up their module
        exec(compile(source, file, "exec"), module.__dict__)
        return module


def bugs_of(module_name: str) -> tuple[Bug, ...]:
    return tuple(importlib.import_module(f"training.{module_name}").BUGS)


def programs(module_names: tuple[str, ...]) -> Iterator[Program]:
    """Yield each program: first as it should be, then with each of its bugs."""
    for name in module_names:
        yield Program(name)
        for bug in bugs_of(name):
            yield Program(name, bug)
