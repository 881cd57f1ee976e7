"""A calibration point is written by `launch` and read by `trace`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from shardlab.cli import main
from shardlab.errors import InvalidCalibration
from shardlab.hardware.calibration import CalibrationPoint, read_calibration

POINT = CalibrationPoint(
    program="step", mesh=(("data", 2),), n_processes=2, n_devices=2, device_kind="TPU v5 lite",
    platform="tpu", jax_version="0.10.2", hardware="tpu-v5e", flops=10**12, wire_bytes=10**6,
    compute_seconds=0.3, communication_seconds=0.1, measured_seconds=0.8, n_calls=5,
)  # fmt: skip


def write(folder, data):
    file = folder / "point.json"
    file.write_text(json.dumps(data))
    return str(file)


def test_the_efficiency_is_the_estimate_over_the_measured_time():
    assert POINT.efficiency == pytest.approx(0.5)
    faster = CalibrationPoint(**{**vars(POINT), "measured_seconds": 0.01})
    assert faster.efficiency == 1.0


def test_a_point_that_was_written_is_read(tmp_path):
    assert read_calibration(write(tmp_path, POINT.to_json())) == POINT


@pytest.mark.parametrize(
    "change", [{"format": 2}, {"kind": "plan"}, {"measured_seconds": 0}, {"mesh": None}]
)
def test_another_file_is_rejected(change, tmp_path):
    with pytest.raises(InvalidCalibration):
        read_calibration(write(tmp_path, {**POINT.to_json(), **change}))
    with pytest.raises(InvalidCalibration):
        read_calibration(tmp_path / "missing.json")


def test_trace_estimates_at_the_measured_efficiency(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("import jax.numpy as jnp\ndef f(x):\n    return x @ x\n")
    command = ["trace", "model.py:f", "f32[512,512]", "--hardware", "tpu-v5e", "--json", "-"]
    seconds = []
    for options in ([], ["--calibration", write(tmp_path, POINT.to_json())]):
        result = CliRunner().invoke(main, [*command, *options])
        assert result.exit_code == 0, result.stderr
        seconds.append(json.loads(result.stdout)["estimate"]["compute_seconds"])
    assert seconds[1] == pytest.approx(2 * seconds[0])
