"""Configurations of MaxText, Megatron, torchtitan and NeMo become the same typed run."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.configs.sample_files import (
    MAXTEXT,
    MAXTEXT_SIZES,
    MEGATRON,
    MEGATRON_MIXTURE,
    QWEN3_CONFIG,
    TORCHTITAN,
)
from shardlab.errors import InvalidRunConfig, LabError
from shardlab.planner.configs.load_config import load_run_config
from shardlab.planner.configs.nemo_recipes import recipe_names
from shardlab.planner.configs.run_config import ConfigOptions
from shardlab.planner.configs.shell_arguments import read_arguments
from shardlab.planner.make_plan import plan
from shardlab.planner.memory.workload import Workload
from shardlab.planner.models.presets import load_preset
from shardlab.sharding.mesh import Mesh


def load(tmp_path, name, text, **options):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    return load_run_config(file, ConfigOptions(**options))


def rejected(tmp_path, name, text, **options):
    with pytest.raises(InvalidRunConfig) as raised:
        load(tmp_path, name, text, **options)
    assert raised.value.fix
    return raised.value


# ------------------------------------------------------------------------------------------ MaxText


def test_maxtext_file_with_a_model_name(tmp_path):
    run = load(tmp_path, "run.yml", MAXTEXT, n_devices=256)
    assert run.model == load_preset("llama3-70b")
    assert (run.mesh_text, run.strategy) == ("fsdp=64,tensor=4", "fsdp+tensor")
    assert (run.batch, run.sequence, run.microbatch) == (1024, 8192, None)
    assert (run.remat, run.optimizer, run.precision) == ("full", "adamw", "fp8")
    assert run.policy == "float32,gradients=float32,moments=float32,master=none"
    assert "ici_tensor_parallelism: 4" in run.settings_read
    assert run.settings_ignored == ("run_name", "learning_rate", "logical_axis_rules")
    assert run.notes == ("'base.yml' is not beside it: MaxText's defaults are used instead.",)


def test_maxtext_sizes_are_a_model_with_the_published_count(tmp_path):
    run = load(tmp_path, "run.yml", MAXTEXT_SIZES)
    assert run.model.n_parameters == load_preset("qwen3-0.6b").n_parameters
    assert (run.mesh_text, run.batch) == ("fsdp=4,tensor=2", 4)


def test_maxtext_file_inherits_from_base_config_and_from_the_file_of_the_model(tmp_path):
    (tmp_path / "base.yml").write_text("base_emb_dim: 2048\nper_device_batch_size: 12.0\n", "utf-8")
    models = tmp_path / "models"
    models.mkdir()
    (models / "tiny.yml").write_text("base_emb_dim: 64\nbase_num_decoder_layers: 2\n", "utf-8")
    text = "base_config: base.yml\nmodel_name: tiny\nici_fsdp_parallelism: 8\n"
    run = load(tmp_path, "run.yml", text)
    assert (run.model.architecture.hidden, run.model.architecture.layers) == (64, 2)
    assert (run.batch, run.notes) == (96, ())
    more = text + "base_num_decoder_layers: 3\noverride_model_config: true\n"
    assert load(tmp_path, "more.yml", more).model.architecture.layers == 3


def test_sizes_of_base_yml_do_not_replace_a_known_model(tmp_path):
    (tmp_path / "base.yml").write_text("base_emb_dim: 2048\nmodel_name: default\n", "utf-8")
    text = "base_config: base.yml\nmodel_name: llama3-8b\nici_fsdp_parallelism: 8\n"
    assert load(tmp_path, "run.yml", text).model == load_preset("llama3-8b")
    fewer = text + "base_num_decoder_layers: 4\noverride_model_config: true\n"
    model = load(tmp_path, "fewer.yml", fewer).model
    assert (model.architecture.layers, model.architecture.hidden) == (4, 4096)


def test_maxtext_topology_gives_the_devices_and_the_chip(tmp_path):
    text = "model_name: llama3-8b\ncompile_topology: v5p-256\ncompile_topology_num_slices: 2\n"
    run = load(tmp_path, "run.yml", text + "per_device_batch_size: 1\n")
    assert (run.hardware, run.mesh_text, run.batch) == ("tpu-v5p", "data=2,fsdp=128", 256)
    error = rejected(tmp_path, "run.yml", text.replace("v5p-256", "v5p-250"))
    assert error.what == "There is no TPU slice 'v5p-250'."
    assert "'v5p-256'" in error.fix


@pytest.mark.parametrize(
    ("policy", "remat"),
    [
        ("full", "full"),
        ("minimal", "dots"),
        ("minimal_with_context", "none"),
        ("save_out_proj", "out_proj"),
        ("save_qkv_proj", "query_proj+key_proj+value_proj"),
    ],
)
def test_remat_policies_of_maxtext(tmp_path, policy, remat):
    text = f"model_name: llama3-8b\nici_fsdp_parallelism: 8\nremat_policy: {policy}\n"
    assert load(tmp_path, "run.yml", text).remat == remat


def test_a_custom_remat_policy_counts_the_tensors_on_the_device(tmp_path):
    text = "model_name: llama3-8b\nici_fsdp_parallelism: 8\nremat_policy: custom\n"
    run = load(tmp_path, "run.yml", text + "query_proj: device\nmlpwo: offload\nout_proj: device\n")
    # What is offloaded is not recomputed either.
    assert (run.remat, run.offload) == ("query_proj+out_proj+mlpwo", "mlpwo")


def test_offload_and_vocabulary_tiling_of_maxtext(tmp_path):
    text = "model_name: llama3-8b\nici_fsdp_parallelism: 8\nremat_policy: qkv_proj_offloaded\n"
    more = "optimizer_memory_host_offload: true\nnum_vocab_tiling: 4\n"
    run = load(tmp_path, "run.yml", text + more)
    assert run.offload == "query_proj+key_proj+value_proj"
    assert (run.offload_optimizer, run.loss_chunks) == (True, 4)


def test_gradient_accumulation_of_maxtext_multiplies_the_batch(tmp_path):
    text = "model_name: llama3-8b\nici_fsdp_parallelism: 8\nper_device_batch_size: 2\n"
    run = load(tmp_path, "run.yml", text + "gradient_accumulation_steps: 4\n")
    assert (run.batch, run.microbatch) == (64, 16)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "The file is not a mapping of settings."),
        ("[1, 2]", "The file is not a mapping of settings."),
        ("a: 1\na: 2", "The file is not valid YAML: the key 'a' appears twice, line 2."),
        ("model_name: llama3-8b", "ici_fsdp_parallelism: -1 takes the remaining devices, and"),
        ("model_name: llama9-8b", "model_name is 'llama9-8b', and its sizes are not in the file."),
        ("model_name: 7", "model_name is 7."),
        ("base_emb_dim: wide", "base_emb_dim is 'wide'."),
        ("base_emb_dim: true", "base_emb_dim is True."),
        ("base_emb_dim: -4", "base_emb_dim is -4."),
        ("base_emb_dim: 4.5", "base_emb_dim is 4.5."),
        ("base_emb_dim: [4]", "base_emb_dim is [4]."),
        ("ici_tensor_parallelism: 0", "ici_tensor_parallelism is 0."),
        ("ici_tensor_parallelism: 1e30", "ici_tensor_parallelism is '1e30'."),
        ("ici_fsdp_parallelism: 8\nper_device_batch_size: 0.3", "per_device_batch_size 0.3 on 8"),
        ("ici_fsdp_parallelism: 8\nper_device_batch_size: .nan", "per_device_batch_size is nan."),
        ("ici_fsdp_parallelism: 8\nremat_policy: most", "remat_policy is 'most'."),
        ("ici_fsdp_parallelism: 8\nopt_type: sophia", "opt_type is 'sophia'."),
        ("base_config: [1]", "base_config is [1]."),
    ],
)
def test_mistakes_in_maxtext_files_are_named(tmp_path, text, what):
    error = rejected(tmp_path, "run.yml", text)
    assert error.what.startswith(what)
    assert "run.yml" in error.where


def test_a_file_that_inherits_from_itself_is_rejected(tmp_path):
    assert "base_config is 'run.yml'" in rejected(tmp_path, "run.yml", "base_config: run.yml").what


# ----------------------------------------------------------------------------------------- Megatron


def test_megatron_script(tmp_path):
    run = load(tmp_path, "train.sh", MEGATRON)
    # The vocabulary is padded to a multiple of 128 × 4: two tables of 256 more rows.
    difference = run.model.n_parameters - load_preset("llama3-8b").n_parameters
    assert difference == 2 * 256 * 4096
    assert run.mesh_text == "data=4,stage=2,tensor=4"
    assert run.strategy == "tensor+pipeline+zero1"
    assert (run.batch, run.sequence, run.microbatch) == (128, 8192, 4)
    assert (run.remat, run.schedule, run.precision) == ("selective", "interleaved:4", "fp8")
    assert run.sequence_parallel
    assert run.policy == "bfloat16,gradients=float32,moments=float32,master=float32"
    assert set(run.settings_ignored) == {"--lr", "--min-lr", "--tokenizer-type"}
    assert run.notes == (
        "The script has conditions: flags of every branch were read, the last counts.",
    )


def test_megatron_mixture_has_the_published_count_and_an_expert_axis(tmp_path):
    run = load(tmp_path, "flags.txt", MEGATRON_MIXTURE, n_devices=256)
    assert run.mesh_text == "data=4,expert=16,stage=4"
    assert run.model.architecture == load_preset("deepseek-v3-main").architecture
    # DeepSeek's router has a bias for load balance, which is no flag of the model: 58 × 256.
    difference = load_preset("deepseek-v3-main").n_parameters - run.model.n_parameters
    assert difference == 58 * 256


def test_expert_parallelism_wider_than_data_parallelism_is_noted(tmp_path):
    text = MEGATRON_MIXTURE.replace("parallel-size 16", "parallel-size 64")
    run = load(tmp_path, "flags.txt", text, n_devices=64)
    assert run.mesh_text == "expert=16,stage=4"
    assert "counted as expert=16" in run.notes[0]


@pytest.mark.parametrize(
    ("flags", "n_devices", "mesh", "strategy"),
    [
        # experts of 2 tensor ranks each, the default; and whole experts, over tensor ranks too
        ("", 128, "expert=16,stage=4,tensor=2", "expert+tensor+pipeline+zero1"),
        (
            "--expert-tensor-parallel-size 1",
            128,
            "data=2,expert=8,stage=4,tensor=2",
            "wide-expert+tensor+pipeline+zero1",
        ),
        # a group of 16 does not fit on 8 data-parallel ranks without their tensor ranks
        ("", 64, "expert=8,stage=4,tensor=2", "wide-expert+tensor+pipeline+zero1"),
    ],
)
def test_megatron_expert_groups_may_span_tensor_ranks(tmp_path, flags, n_devices, mesh, strategy):
    text = f"{MEGATRON_MIXTURE} --tensor-model-parallel-size 2 {flags}"
    run = load(tmp_path, "flags.txt", text, n_devices=n_devices)
    assert (run.mesh_text, run.strategy) == (mesh, strategy)
    assert not [note for note in run.notes if "cannot be written" in note]


def test_megatron_yaml_of_functional_tests(tmp_path):
    text = """
    ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}
    MODEL_ARGS:
      --num-layers: 12
      --hidden-size: 512
      --num-attention-heads: 8
      --micro-batch-size: 4
      --global-batch-size: 32
      --seq-length: 1024
      --vocab-size: 50000
      --tensor-model-parallel-size: 2
      --swiglu: false
      --bf16: true
    """
    run = load(tmp_path, "model_config.yaml", text, n_devices=8)
    assert (run.mesh_text, run.model.architecture.ffn) == ("data=4,tensor=2", 2048)
    assert not run.model.architecture.gated
    assert run.model.architecture.vocab == 50176  # a multiple of 128 × 2


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("--vocab-size 128256", "", "--vocab-size is missing: the tokenizer decides it."),
        ("TP=4\n", "", "--tensor-model-parallel-size is '$TP', and no line of the file sets it."),
        ("--num-layers 32", "--num-layers many", "--num-layers is 'many'."),
        ("--hidden-size 4096", "--hidden-size", "--hidden-size is True."),
        ("--global-batch-size 128", "--global-batch-size 6", "--global-batch-size 6 is not a mul"),
        ("TP=4\n", "TP=5\n", "The sizes data=-1,stage=2,context=1,tensor=5 do not fit 32 devices."),
        ("--recompute-granularity selective", "--recompute-granularity half", "--recompute-granu"),
        ("--lr 3e-4", "--lr 'open", "The script cannot be split into words: No closing quotation."),
    ],
)
def test_mistakes_in_megatron_scripts_are_named(tmp_path, old, new, what):
    assert old in MEGATRON
    assert rejected(tmp_path, "train.sh", MEGATRON.replace(old, new)).what.startswith(what)


@pytest.mark.parametrize("text", ["", "echo hello", "--lr 1 --min-lr 0.1", "\x00\x01"])
def test_a_file_without_megatron_flags_is_rejected(tmp_path, text):
    assert rejected(tmp_path, "train.sh", text).what == "The file has no flags of Megatron."


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("--a=1 --b 2 --c", {"a": "1", "b": "2", "c": True}),
        ("X=3\ncmd --a ${X} --b $X --c ${Y:-4}", {"a": "3", "b": "3", "c": "4"}),
        ("N=$((2*8))\ncmd --a $N", {"a": "16"}),
        ("N=$((8 / 0))\ncmd --a $N", {"a": "$((8/0))"}),
        ("cmd --a -1 --b -x", {"a": "-1", "b": True}),
        ("A=(--x 1 --y)\ncmd ${A[@]} --z 3", {"x": "1", "y": True, "z": "3"}),
        ('A="--x 1\n --y 2"', {"x": "1", "y": "2"}),
        ("cmd --under_score 5 # --no 6", {"under-score": "5"}),
        ("X=$X$X\nX=$X$X\ncmd --a $X", {"a": "$X" * 4}),
        ("B=7\ncmd --a ${A:-$B}", {"a": "7"}),
    ],
)
def test_flags_of_a_script(script, flags):
    assert read_arguments(script, "x.sh").flags == flags


def test_variables_that_repeat_each_other_do_not_grow_without_end():
    script = "A=xxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A\n" * 40 + "cmd --a $A"
    assert len(read_arguments(script, "x.sh").flags["a"]) <= 100_000


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="-aA=1$(){}'\"\\# \n;|*/+:", max_size=80))
def test_any_script_is_read_or_rejected(text):
    with contextlib.suppress(InvalidRunConfig):  # any other exception fails the test
        read_arguments(text, "x.sh")


# --------------------------------------------------------------------------------------- torchtitan


def test_torchtitan_file(tmp_path):
    run = load(tmp_path, "train.toml", TORCHTITAN, n_devices=64)
    assert run.model == load_preset("llama3-70b")
    assert (run.mesh_text, run.strategy) == ("fsdp=8,tensor=8", "fsdp+tensor")
    assert (run.batch, run.sequence, run.microbatch) == (64, 8192, None)
    assert (run.remat, run.precision, run.optimizer) == ("full", "fp8", "adamw")
    assert run.settings_ignored == ("job.description", "optimizer.lr", "training.steps")


def test_torchtitan_pipeline_computes_single_sequences(tmp_path):
    text = TORCHTITAN.replace("pipeline_parallel_degree = 1", "pipeline_parallel_degree = 4")
    text = text.replace("steps = 1000", "global_batch_size = 64")
    run = load(tmp_path, "train.toml", text, n_devices=64)
    assert run.mesh_text == "stage=4,fsdp=2,tensor=8"
    assert (run.batch, run.microbatch) == (64, 2)


def test_torchtitan_experts_are_a_part_of_fsdp(tmp_path):
    text = TORCHTITAN.replace('flavor = "70B"', 'flavor = "671B"').replace(
        'name = "llama3"', 'name = "deepseek_v3"'
    )
    text = text.replace("context_parallel_degree = 1", "expert_parallel_degree = 8")
    run = load(tmp_path, "train.toml", text, n_devices=256)
    # expert_tensor_parallel_degree is 1 by default: the tensor ranks are a part of the group
    assert (run.mesh_text, run.strategy) == ("fsdp=32,tensor=8", "fsdp+wide-expert+tensor")
    nested = text.replace(
        "expert_parallel_degree = 8",
        "expert_parallel_degree = 8\nexpert_tensor_parallel_degree = 8",
        1,
    )
    run = load(tmp_path, "train.toml", nested, n_devices=256)
    assert (run.mesh_text, run.strategy) == ("fsdp=4,expert=8,tensor=8", "fsdp+expert+tensor")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (TORCHTITAN, "", "The file has no table of torchtitan."),
        (TORCHTITAN, "model = 3", "The file has no table of torchtitan."),
        (TORCHTITAN, "[model", "The file is not valid TOML"),
        ('"70B"', '"71B"', "The flavor '71B' of 'llama3' is not known."),
        ('"70B"', "70", "model.flavor is 70."),
        ("seq_len = 8192", 'seq_len = "long"', "training.seq_len is 'long'."),
        ('mode = "full"', 'mode = "fully"', "activation_checkpoint.mode is 'fully'."),
        ("local_batch_size = 8", "global_batch_size = 7", "The global batch of 7 is not a multip"),
        ("tensor_parallel_degree = 8", "tensor_parallel_degree = 7", "The sizes data=1,stage=1,"),
    ],
)
def test_mistakes_in_torchtitan_files_are_named(tmp_path, old, new, what):
    assert old in TORCHTITAN
    text = TORCHTITAN.replace(old, new)
    assert rejected(tmp_path, "train.toml", text, n_devices=64).what.startswith(what)


# --------------------------------------------------------------------------- NeMo and Hugging Face


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_nemo_is_a_run_on_its_devices(name):
    run = load_run_config(name)
    assert run.model is not None
    assert run.batch % (run.microbatch or run.batch) == 0
    made = plan(
        run.model,
        run.mesh,
        strategy=run.strategy,
        hardware=run.hardware,
        optimizer=run.optimizer,
        policy=run.policy,
        workload=Workload(batch=run.batch, sequence=run.sequence, microbatch=run.microbatch),
    )
    assert made.n_devices == run.n_devices


def test_recipes_without_a_preset_have_the_size_in_their_name():
    sizes = {
        name: round(load_run_config(name).model.n_parameters / 1e9)
        for name in ("gpt3_175b", "nemotron4_15b", "nemotron4_340b", "nemotron3_8b")
    }
    assert sizes == {
        "gpt3_175b": 175,
        "nemotron4_15b": 16,
        "nemotron4_340b": 341,
        "nemotron3_8b": 9,
    }


def test_a_recipe_follows_the_hardware_and_precision_of_options():
    usual = load_run_config("llama3-70b")
    assert (usual.hardware, usual.precision) == ("h100", "bf16")
    on_b200 = load_run_config("llama3_70b", ConfigOptions(hardware="b200", precision="fp8"))
    assert (on_b200.hardware, on_b200.mesh_text) == ("b200", "fsdp=64")
    with pytest.raises(InvalidRunConfig, match="NeMo recommends nothing"):
        load_run_config("llama3_70b", ConfigOptions(hardware="a100"))


def test_a_recipe_on_more_devices_has_more_data_parallelism():
    run = load_run_config("llama3_70b", ConfigOptions(n_devices=256))
    assert (run.mesh_text, run.batch) == ("data=8,stage=4,context=2,tensor=4", 128)


def test_hugging_face_config_alone_is_a_model(tmp_path):
    run = load(tmp_path, "qwen/config.json", json.dumps(QWEN3_CONFIG))
    assert (run.model.name, run.model.n_parameters) == ("qwen", 596_049_920)
    assert run.mesh is None


def test_an_option_for_the_mesh_replaces_that_of_the_file(tmp_path):
    run = load(tmp_path, "run.yml", MAXTEXT, mesh=Mesh(fsdp=16, tensor=2))
    assert (run.mesh_text, run.batch, run.strategy) == ("fsdp=16,tensor=2", 128, "fsdp+tensor")
    script = load(tmp_path, "train.sh", MEGATRON, mesh=Mesh(data=2, tensor=8))
    assert (script.mesh_text, script.microbatch) == ("data=2,tensor=8", 2)


def test_with_a_model_of_the_command_sizes_may_be_missing(tmp_path):
    text = "--micro-batch-size 1 --seq-length 128 --tensor-model-parallel-size 2"
    run = load(tmp_path, "flags.txt", text, has_model=True, n_devices=4)
    assert (run.model, run.mesh_text) == (None, "data=2,tensor=2")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("llama3_71b", "'llama3_71b' is neither a file nor a recipe of NeMo."),
        ("nowhere.yml", "There is no file 'nowhere.yml'."),
        ("", "'' is neither a file nor a recipe of NeMo."),
        ("a\0b", "is neither a file nor a recipe of NeMo."),
        (7, "7 is not a configuration."),
        (None, "None is not a configuration."),
    ],
)
def test_what_is_no_configuration_is_named(source, what):
    with pytest.raises(InvalidRunConfig) as raised:
        load_run_config(source)
    assert what in raised.value.what


@pytest.mark.parametrize("name", ["a.yml", "a.sh", "a.toml", "a.json", "a.py"])
@pytest.mark.parametrize("content", [b"\xff\xfe", b"a" * 2_000_000, b""])
def test_binary_huge_and_empty_files_are_rejected(tmp_path, name, content):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(InvalidRunConfig):
        load_run_config(file)


@pytest.mark.parametrize("name", ["a.yml", "a.sh", "a.toml", "a.json", "a.py"])
@settings(max_examples=25, deadline=None)
@given(text=st.text(max_size=200))
def test_any_content_is_a_configuration_or_an_error_of_ours(tmp_path_factory, name, text):
    file = tmp_path_factory.mktemp("any") / name
    file.write_text(text, "utf-8", errors="replace")
    with contextlib.suppress(LabError):  # any other exception fails the test
        load_run_config(file, ConfigOptions(n_devices=8))


@pytest.mark.parametrize(
    ("name", "text", "right", "wrong"),
    [
        ("run.yml", MAXTEXT, "ici_fsdp_parallelism", "ici_fdsp_parallelism"),
        ("run.yml", MAXTEXT, "max_target_length", "max_target_lenght"),
        ("flags.txt", MEGATRON_MIXTURE, "--num-experts", "--num-expert"),
        ("train.toml", TORCHTITAN, "tensor_parallel_degree", "tensor_paralel_degree"),
    ],
)
def test_a_misspelled_setting_is_an_error_and_not_ignored(tmp_path, name, text, right, wrong):
    assert right in text
    with pytest.raises(InvalidRunConfig, match="is not a setting") as caught:
        load(tmp_path, name, text.replace(right, wrong), n_devices=256)
    assert right in caught.value.fix


def test_all_misspelled_settings_are_named_at_once(tmp_path):
    text = MAXTEXT.replace("ici_fsdp_parallelism", "ici_fdsp_parallelism")
    text = text.replace("max_target_length", "max_target_lenght")
    with pytest.raises(InvalidRunConfig, match="are not settings") as caught:
        load(tmp_path, "run.yml", text, n_devices=256)
    for name in ("ici_fsdp_parallelism", "max_target_length"):
        assert repr(name) in caught.value.fix
