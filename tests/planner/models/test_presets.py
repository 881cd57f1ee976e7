"""Presets: each model's total is the published one, to the last element and byte."""

from __future__ import annotations

import pytest

from shardlab.errors import UnknownModel
from shardlab.planner.models.presets import find_preset, load_preset, preset_names
from shardlab.planner.tensor_group import Tensor, group_tensors
from shardlab.planner.timing.step_flops import active_parameters

# Elements of all tensors of a checkpoint, and how many tensors and bytes there are. The counts of
# elements are those that Hugging Face shows for the safetensors files of each repository, or those
# of KerasHub's preset tables; `published_source` in each preset's file says which.
COUNTS = {
    "llama2-7b": (6_738_415_616, 291, 13_476_831_232),
    "llama2-13b": (13_015_864_320, 363, 26_031_728_640),
    "llama2-70b": (68_976_648_192, 723, 137_953_296_384),
    "llama3-8b": (8_030_261_248, 291, 16_060_522_496),
    "llama3-70b": (70_553_706_496, 723, 141_107_412_992),
    "llama3.1-405b": (405_853_388_800, 1_137, 811_706_777_600),
    "mistral-7b-v0.1": (7_241_732_096, 291, 14_483_464_192),
    "mixtral-8x7b": (46_702_792_704, 995, 93_405_585_408),
    "gemma2-2b": (2_614_341_888, 288, 5_228_683_776),
    "gemma2-9b": (9_241_705_984, 464, 18_483_411_968),
    "gemma2-27b": (27_227_128_320, 508, 54_454_256_640),
    "gemma3-4b": (4_300_079_472, 883, 8_600_158_944),
    "gemma3-12b": (12_187_325_040, 1_065, 24_374_650_080),
    "gemma3-27b": (27_432_406_640, 1_247, 54_864_813_280),
    "qwen2.5-7b": (7_615_616_512, 339, 15_231_233_024),
    "qwen2.5-72b": (72_706_203_648, 963, 145_412_407_296),
    "qwen3-8b": (8_190_735_360, 399, 16_381_470_720),
    "qwen3-32b": (32_762_123_264, 707, 65_524_246_528),
    "qwen3-30b-a3b": (30_532_122_624, 18_867, 61_064_245_248),
    "qwen3-235b-a22b": (235_093_634_560, 36_945, 470_187_269_120),
    "deepseek-v3": (684_531_386_000, 91_991, 688_574_839_360),
    "deepseek-v3-main": (671_026_419_200, 45_395, 1_342_052_838_400),
    "qwen3-0.6b": (596_049_920, 310, 1_192_099_840),
    "qwen3-1.7b": (1_720_574_976, 310, 3_441_149_952),
    "qwen3-4b": (4_022_468_096, 398, 8_044_936_192),
    "qwen3-14b": (14_768_307_200, 443, 29_536_614_400),
    "gemma3-1b": (999_885_952, 340, 1_999_771_904),
    "gemma3-270m": (268_098_176, 236, 536_196_352),
    "gpt-oss-20b": (20_914_757_184, 4_923, 41_829_514_368),
    "gpt-oss-120b": (116_829_156_672, 28_119, 233_658_313_344),
    "llama4-scout": (107_769_861_120, 2_787, 215_539_722_240),
    "llama4-maverick": (400_711_848_960, 9_675, 801_423_697_920),
    "mixtral-8x22b": (140_620_634_112, 1_739, 281_241_268_224),
    "kimi-k2": (1_026_408_232_448, 69_975, 2_052_816_510_976),
}


@pytest.mark.parametrize(("name", "billions"), [("deepseek-v3-main", 671), ("kimi-k2", 1026)])
def test_a_preset_without_an_exact_published_count_rounds_to_the_stated_one(name, billions):
    assert round(load_preset(name).n_parameters / 1e9) == billions


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt-oss-20b", 4.2),  # OpenAI counts 3.6 without the embedding
        ("gpt-oss-120b", 5.7),  # 5.1 without the embedding
        ("llama4-maverick", 17.2),
        ("kimi-k2", 32.9),
        ("mixtral-8x22b", 39.2),
    ],
)
def test_a_mixture_has_the_active_parameters_of_its_model_card(name, billions):
    assert round(active_parameters(load_preset(name)) / 1e9, 1) == billions


def test_every_preset_is_in_the_table_above():
    assert set(preset_names()) == set(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_a_preset_has_the_published_count(name):
    model = load_preset(name)
    assert (model.n_parameters, model.n_tensors, model.n_bytes) == COUNTS[name]
    assert model.published == model.n_parameters
    assert model.name == name
    assert set(model.details) == {"published_source", "config_source"}


@pytest.mark.parametrize("name", COUNTS)
def test_a_preset_has_the_architecture_of_its_tensors(name):
    model = load_preset(name)
    architecture = model.architecture
    shapes = {group.name: group.shape for group in model.groups}
    embedding = next(
        shape for path, shape in shapes.items() if path.endswith("embed_tokens.weight")
    )
    assert embedding == (architecture.vocab, architecture.hidden)
    assert (
        any(path.endswith("lm_head.weight") for path in shapes) is not architecture.tied_embeddings
    )
    layers = [
        group
        for group in model.groups
        if group.name.endswith("input_layernorm.weight") and "vision" not in group.name
    ]
    total = sum(group.n_tensors for group in layers)
    assert (
        total - (name == "deepseek-v3") == architecture.layers
    )  # its layer 61 predicts a second token
    if architecture.experts:
        experts = [group for group in model.groups if ".experts." in group.name]
        ups = [
            group.shape for group in experts if group.name.endswith(("up_proj.weight", "w1.weight"))
        ]
        assert set(ups) == {(architecture.ffn, architecture.hidden)}
        assert all(architecture.experts in map(len, group.ranges) for group in experts)
    if not architecture.kv_lora_rank:
        keys = {shape for path, shape in shapes.items() if path.endswith("self_attn.k_proj.weight")}
        expected = (architecture.kv_heads * architecture.head_dim, architecture.hidden)
        assert expected in keys


@pytest.mark.parametrize("name", COUNTS)
def test_a_preset_says_where_its_numbers_come_from_in_public_words(name):
    model = load_preset(name)
    message = " ".join((*model.details.values(), *model.notes))
    assert all(len(item) > 20 for item in model.details.values())
    for private in ("index id", "file id", "recalled", "(found", "id 7"):
        assert private not in message


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("llama-3-70b", "llama3-70b"),
        ("LLAMA3_70B", "llama3-70b"),
        ("  llama3 70b ", "llama3-70b"),
        ("meta-llama/Meta-Llama-3-70B", "llama3-70b"),
        ("Llama-3.3-70B-Instruct", "llama3-70b"),
        ("llama3.3-70b", "llama3-70b"),
        ("llama3.1-8b", "llama3-8b"),
        ("llama3-405b", "llama3.1-405b"),
        ("google/gemma-2-9b-it", "gemma2-9b"),
        ("gemma-3-27b", "gemma3-27b"),
        ("mistral-7b", "mistral-7b-v0.1"),
        ("Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("DeepSeek-V3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("llama4-17b-16e", "llama4-scout"),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", "llama4-maverick"),
        ("moonshotai/Kimi-K2-Base", "kimi-k2"),
    ],
)
def test_a_name_may_be_written_as_people_write_it(written, name):
    assert load_preset(written).name == name
    assert load_preset(written).groups == load_preset(name).groups


def test_another_models_name_says_that_it_is_one_of_the_same_shapes():
    assert load_preset("Llama-3.1-8B").source == (
        "preset llama3-8b, shapes as in its checkpoint; 'Llama-3.1-8B' has the same shapes"
    )


@pytest.mark.parametrize(
    ("name", "nearest"), [("llama3-71b", "llama3-70b"), ("deepseek-v4", "deepseek-v3")]
)
def test_an_unknown_name_suggests_the_nearest(name, nearest):
    with pytest.raises(UnknownModel) as raised:
        load_preset(name)
    assert raised.value.what == f"Unknown model {name!r}: there is no such preset and no such file."
    assert raised.value.fix.startswith(f"Did you mean {nearest!r} or ")
    assert raised.value.fix.endswith("? `shardlab plan --list` shows all 34 presets.")


@pytest.mark.parametrize("name", ["", " ", "/", "../presets/llama3-70b", "llama3-70b.toml", "\0"])
def test_what_is_no_name_is_no_preset(name):
    assert find_preset(name) is None


@pytest.mark.parametrize(
    "name", ["deepseek-v3-main", "gemma3-27b", "mixtral-8x7b", "llama4-maverick"]
)
def test_a_preset_is_grouped_as_its_checkpoint_would_be(name):
    model = load_preset(name)
    tensors = (
        Tensor(path, group.shape, group.dtype, group.axes)
        for group in model.groups
        for path in group.paths()
    )
    assert group_tensors(tensors) == model.groups
