"""The programs of the autoshard benchmark by name: `family.program`."""

from __future__ import annotations

import importlib

from benchmarks.autoshard.program import BenchmarkProgram

FAMILIES = {
    "dense": ("mlp", "autoencoder", "large_vocabulary", "loss_mixture"),
    "transformers": (
        "unrolled",
        "scanned",
        "grouped_query",
        "mixture_of_experts",
        "cross_attention",
        "nnx_decoder",
    ),
    "vision": ("cnn", "unet", "vision_transformer", "equinox_mixer"),
    "generative": ("diffusion", "vae"),
    "sequences": ("rnn", "linear_recurrence"),
    "recommendation": ("recommender", "two_tower"),
    "graphs": ("message_passing", "graph_attention"),
    "training": (
        "adam_states",
        "factored_optimizer",
        "gradient_accumulation",
        "recomputation",
        "lora",
    ),
    "inference": ("decoding", "prefill"),
}
NAMES = tuple(f"{family}.{name}" for family, names in FAMILIES.items() for name in names)


def make_program(name: str) -> BenchmarkProgram:
    """Return the program of a name such as `transformers.scanned`."""
    program: BenchmarkProgram = importlib.import_module(f"{__package__}.{name}").make_program()
    return program
