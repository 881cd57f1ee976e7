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


def test_8_bit_products_reach_less_of_their_peak():
    plain = V6E.time(matmul("", 8192, 8192, 8192))
    narrow = V6E.time(matmul("", 8192, 8192, 8192, dtype="int8"))
    assert plain.seconds / 2 < narrow.seconds < plain.seconds


def test_experts_with_few_tokens_are_slow():
    timer = OperationTimer(hardware=parse_hardware("tpu-7x"), framework=parse_framework("maxtext"))
    dense = timer.time(matmul("", 1024, 7168, 2048))
    few, many = (timer.time(matmul("", n, 7168, 2048, group_rows=n)) for n in (1024, 8192))
    assert few.seconds > 1.3 * dense.seconds
    # a tile of 512 rows is computed for two groups: 1024 + 512 rows against 8192 + 512
    assert 8 * few.seconds / many.seconds == pytest.approx(8 * 1536 / 8704, rel=0.01)


def test_narrow_heads_and_kernels_of_an_older_chip_are_slow():
    def seconds(chip, framework, head_dim):
        timer = OperationTimer(hardware=parse_hardware(chip), framework=parse_framework(framework))
        attention = Operation(name="", kind="attention", flops=1e15, head_dim=head_dim)
        return timer.time(attention).seconds

    # of 64 instead of 128: 4/3 of the time on H100, less on A100, whose exponentials are not slower
    assert seconds("h100", "megatron", 64) / seconds("h100", "megatron", 128) == pytest.approx(
        4 / 3
    )
    assert seconds("a100", "megatron", 64) / seconds("a100", "megatron", 128) == pytest.approx(1.2)
    newer, older = (
        seconds(chip, "pytorch-eager", 128) / seconds(chip, "megatron", 128)
        for chip in ("h100", "a100")
    )
    assert newer / older == pytest.approx(1 / 0.63, rel=1e-3)


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
