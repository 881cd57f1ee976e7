"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    # Some shards have many columns, and in some row only the last of one of them is not low.
    has_late_maximum = draw.number in (2, 5) and draw.scale > 1
    columns = int(rng.integers(12, 17) if has_late_maximum else rng.integers(1, 3 + draw.scale))
    vocab = n * columns + (n == 1)
    batch = int(rng.integers(4, 6 + draw.scale))
    # Small numbers, so that every column counts; devices have different maxima.
    logits = draw.numbers(batch, vocab, largest=6)
    # One row is near the largest number that the statement allows and one near the smallest:
    # exp(89) overflows float32, exp(-104) is 0, and half of a maximum is not enough.
    offsets = rng.integers(-20, 21, batch) * rng.integers(0, 2, batch)
    offsets[:2] = rng.integers(480, 495), -rng.integers(480, 495)
    # In some rows some logits are 200 or more below the others. Then any other column than that of
    # the maximum, and the mean too, is more than 88 below the maximum: subtracting it overflows.
    is_low = rng.random((batch, vocab)) < rng.choice([0, 0.6], (batch, 1))
    is_low[np.arange(batch), rng.integers(0, vocab, batch)] = False
    # In one row the first column is low and the last is not, in another one the reverse.
    is_low[-2:, [0, -1]] = [[False, True], [True, False]]
    is_low[1] = False  # near -500 already
    if has_late_maximum:
        is_low[2] = np.arange(vocab) != columns * rng.integers(1, n + 1) - 1
    logits = logits + offsets[:, None] - rng.integers(200, 239) * is_low
    # Mostly a likely label: one that is 200 below would raise the tolerance for all rows.
    labels = np.where(is_low, -np.inf, rng.random((batch, vocab))).argmax(1)
    if rng.random() < 0.25:
        labels[rng.integers(batch)] = rng.integers(vocab)
    if draw.number == 3 and draw.scale > 1:
        # One loss near 250, the largest that the statement allows.
        labels[2] = (logits[2].argmax() + rng.integers(1, vocab)) % vocab
        logits[2, labels[2]] = logits[2].max() - rng.integers(245, 250)
    rows = rng.permutation(batch)[: 1 if draw.number == 7 else batch]
    return {"logits": logits[rows].astype(np.float32), "labels": labels[rows].astype(np.int32)}


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
