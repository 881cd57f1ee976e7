"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    vocab = draw.mesh.axis_sizes[0] * (1 + draw.scale)
    batch = 3 + draw.scale
    # Up to 12 apart, so that devices have different maxima. exp(96) overflows float32.
    logits = draw.rng.integers(-6, 7, (batch, vocab)).astype(np.float32)
    logits[::2] += 96.0
    # Labels at both ends of the vocabulary, and in between.
    labels = draw.rng.integers(0, vocab, batch)
    labels[:2] = 0, vocab - 1
    return {"logits": logits, "labels": labels.astype(np.int32)}


def expected(mesh, logits, labels):
    logits64 = logits.astype(np.float64)
    maximum = logits64.max(1)
    total = np.log(np.exp(logits64 - maximum[:, None]).sum(1)) + maximum
    return (total - logits64[np.arange(len(labels)), labels]).astype(np.float32)


def input_specs(mesh):
    return {"logits": Spec(None, mesh.axis_names[0])}


def output_specs(mesh):
    return Spec()


def budget(mesh, logits, labels):
    # Three numbers per row: the maximum, the sum, and the logit of the label.
    return {"payload_bytes": 3 * 4 * len(labels)}
