"""Small configurations in the form that each framework uses, written for the tests."""

MAXTEXT = """
base_config: "base.yml"
run_name: "seventy"
model_name: "llama3-70b"
per_device_batch_size: 4
max_target_length: 8192
ici_fsdp_parallelism: -1
ici_tensor_parallelism: 4
remat_policy: "full"
dtype: "bfloat16"
quantization: "fp8_full"
opt_type: "adamw"
learning_rate: 3.e-5
logical_axis_rules: [["mlp", ["tensor"]]]
"""

MAXTEXT_SIZES = """
base_emb_dim: 1024
base_num_query_heads: 16
base_num_kv_heads: 8
base_mlp_dim: 3072
base_num_decoder_layers: 28
head_dim: 128
vocab_size: 151_936
logits_via_embedding: true
use_qk_norm: true
per_device_batch_size: 0.5
ici_fsdp_parallelism: 4
ici_tensor_parallelism: 2
"""

MEGATRON = """#!/bin/bash
# Don't stop at an apostrophe in a comment.
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-4}
TP=4
PP=2
WORLD_SIZE=$((GPUS_PER_NODE * NNODES))
MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336     # SwiGLU
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --normalization RMSNorm
    --swiglu
    --untie-embeddings-and-output-weights
    --disable-bias-linear
    --vocab-size 128256
)
PARALLEL_ARGS="
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size ${PP}
    --num-layers-per-virtual-pipeline-stage 4
    --sequence-parallel
    --use-distributed-optimizer
"
if [ "$DTYPE" = fp8 ]; then
    EXTRA+=("--fp8-format hybrid")
fi
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \\
    ${MODEL_ARGS[@]} $PARALLEL_ARGS \\
    --micro-batch-size 1 \\
    --global-batch-size 128 \\
    --recompute-granularity selective \\
    --bf16 --lr 3e-4 --min-lr -1 --tokenizer-type NullTokenizer
"""

MEGATRON_MIXTURE = """
--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128
--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128
--qk-pos-emb-head-dim 64 --v-head-dim 128 --num-experts 256 --moe-router-topk 8
--moe-router-num-groups 8 --moe-router-group-topk 4
--moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048
--moe-layer-freq ([0]*3+[1]*58) --swiglu --normalization RMSNorm --disable-bias-linear
--untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 129280
--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4
--expert-model-parallel-size 16 --micro-batch-size 1 --global-batch-size 512 --seq-length 4096
--bf16 --use-distributed-optimizer
"""

TORCHTITAN = """
[job]
description = "Llama 3 70B"

[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]

[optimizer]
name = "AdamW"
lr = 1.5e-4

[training]
local_batch_size = 8
seq_len = 8192
steps = 1000

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 1
context_parallel_degree = 1

[activation_checkpoint]
mode = "full"
"""

QWEN3_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

KERAS = """
import keras
from keras.distribution import DeviceMesh, LayoutMap, TensorLayout

MODEL = "model"
mesh = DeviceMesh(shape=(2, 4), axis_names=["batch", "model"])

def make_layouts(device_mesh, batch_dim="batch"):
    layout_map = LayoutMap(device_mesh)
    layout_map["token_embedding/embeddings"] = (MODEL, batch_dim)
    layout_map["decoder_block.*attention.*(query|key|value)/kernel"] = (MODEL, None, None)
    layout_map["decoder_blok.*ffw.*kernel"] = TensorLayout([None, "model"])
    layout_map[compute_key()] = (None,)
    return layout_map
"""

KERAS_MODEL = """
name = "keras-decoder"
[tensors]
"token_embedding/embeddings" = "f32[1000,64]"
"decoder_block_{0..3}/attention/query/kernel" = "f32[8,64,16]"
"decoder_block_{0..3}/ffw_gating/kernel" = "f32[64,256]"
"""
