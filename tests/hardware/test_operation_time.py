"""Operations: each has its own roofline, and small operands are slow."""

from __future__ import annotations

import pytest

from hardware.peak_hardware import peak_hardware
from shardlab.errors import UnknownOption
from shardlab.hardware.chips import parse_hardware
from shardlab.hardware.frameworks import default_framework, frameworks, parse_framework
from shardlab.hardware.operation_time import Operation, OperationTimer, matmul, memory_pass

PEAK = OperationTimer(hardware=peak_hardware("tpu-v5p"))
V6E = OperationTimer(hardware=parse_hardware("tpu-v6e"))


def test_at_peak_a_large_product_takes_its_flops_and_a_pass_its_bytes():
    product = PEAK.time(matmul("", 8192, 8192, 8192))
    assert product.bound == "compute"
    assert product.seconds == pytest.approx(2 * 8192**3 / 4.59e14)
    assert PEAK.time(memory_pass("", 2.8e9)).seconds == pytest.approx(1e-3)


@pytest.mark.parametrize("chip", ["tpu-v5e", "tpu-v5p", "tpu-v6e", "h100", "a100"])
def test_sixteen_way_tensor_parallelism_of_2048_columns_does_not_win(chip):
    # 2048 / 16 = 128 columns: a sixteenth of the FLOPs takes more than a sixteenth of the time
    timer = OperationTimer(hardware=parse_hardware(chip))
    full, sixteenth = (timer.time(matmul("", 8192, 8192, width)).seconds for width in (2048, 128))
    assert sixteenth > 1.1 * full / 16


def test_a_product_that_does_not_fill_a_tile_computes_the_padding():
    exact, padded = (V6E.time(matmul("", 8192, 8192, width)).seconds for width in (8192, 8193))
    assert padded > exact * (8192 + 255) / 8192


@pytest.mark.parametrize(("field", "value"), [("dtype", "int8"), ("group_rows", 8192)])
def test_8_bit_products_and_those_of_experts_reach_less_of_the_peak(field, value):
    plain = V6E.time(matmul("", 8192, 8192, 8192))
    other = V6E.time(matmul("", 8192, 8192, 8192, **{field: value}))
    peak_ratio = 2 if field == "dtype" else 1
    assert plain.seconds / peak_ratio < other.seconds


def test_without_a_figure_for_8_bits_the_rate_of_bf16_counts():
    timer = OperationTimer(hardware=parse_hardware("a100"))  # has no fp8
    assert timer.peak_flops("float8_e4m3fn") == timer.peak_flops("bf16")


def test_a_compute_efficiency_replaces_the_calibrated_ones():
    timer = OperationTimer(hardware=parse_hardware("h100"), compute_efficiency=0.5)
    attention = Operation(name="", kind="attention", flops=1e15)
    overhead = timer.figure("operation_overhead")
    assert timer.time(attention).seconds == pytest.approx(1e15 / 4.95e14 + overhead)


def test_weights_of_8_bits_are_read_in_half_the_time():
    wide, narrow = (
        PEAK.time(matmul("", 1, 8192, 8192, weight_bits=bits)).seconds for bits in (16, 8)
    )
    assert wide / narrow == pytest.approx(2, rel=0.01)


def test_the_mesh_decides_on_the_usual_framework():
    h100, v5p = parse_hardware("h100"), parse_hardware("tpu-v5p")
    assert default_framework(h100, ["data", "stage", "tensor"]).name == "megatron"
    assert default_framework(h100, ["fsdp", "tensor"]).name == "torchtitan"
    assert default_framework(v5p, ["fsdp"]).name == "maxtext"


def test_an_unknown_framework_is_an_error_with_the_nearest_name():
    with pytest.raises(UnknownOption, match="Unknown framework 'megatorn'") as raised:
        parse_framework("megatorn")
    assert raised.value.fix == "Did you mean 'megatron'?"
    assert parse_framework("Megatron") is frameworks()["megatron"]
    assert parse_framework(None) is None
