"""Inputs from a seed, and the right answer in plain NumPy."""

import numpy as np
from shardlab.layouts.spec import Spec


def inputs(draw):
    vocab = draw.mesh.axis_sizes[0] * (1 + draw.scale)
    batch = 3 + draw.scale
    # Up to 12 apart, so that devices have different maxima. exp(96) is too large for float32.
    logits = draw.rng.integers(-6, 7, (batch, vocab)).astype(np.float32)
    logits[::2] += 96.0
    # Labels from both ends of the vocabulary, and between.
    labels = draw.rng.integers(0, vocab, batch)
    labels[:2] = 0, vocab - 1
    return {"logits": logits, "labels": labels.astype(np.int32)}


def expected(mesh, logits, labels):
    wide = logits.astype(np.float64)
    largest = wide.max(1)
    total = np.log(np.exp(wide - largest[:, None]).sum(1)) + largest
    return (total - wide[np.arange(len(labels)), labels]).astype(np.float32)


def input_specs(mesh):
    return {"logits": Spec(None, mesh.axis_names[0])}


def output_specs(mesh):
    return Spec()


def budget(mesh, logits, labels):
    # Three numbers for each row: the largest logit, the sum, the label's logit.
    return {"payload_bytes": 3 * 4 * len(labels)}
