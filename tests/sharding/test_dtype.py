"""Dtype: every dtype JAX has, by any of its names, with its size in device memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardlab.errors import InvalidType, UnknownDtype
from shardlab.sharding.dtype import parse_dtype


def jax_scalar_types():
    kinds = {name: getattr(jnp, name) for name in dir(jnp)}
    return sorted(name for name, kind in kinds.items() if type(kind) is type(jnp.float32))


@pytest.mark.parametrize("name", jax_scalar_types())
def test_every_jax_dtype_has_the_same_bits_as_in_jax(name):
    kind = getattr(jnp, name)
    dtype = parse_dtype(kind)
    assert dtype.name == jnp.dtype(kind).name
    assert dtype is parse_dtype(jnp.dtype(kind)) is parse_dtype(dtype.short)
    assert dtype.bits == jax.dtypes.itemsize_bits(kind)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_key_has_the_bytes_of_its_data(impl):
    keys = jax.random.split(jax.random.key(0, impl=impl), 3)
    assert parse_dtype(keys.dtype).n_bytes(3) == keys.nbytes


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("bf16", "bfloat16"),
        ("f32", "float32"),
        ("fp32", "float32"),
        ("s8", "int8"),
        ("i8", "int8"),
        ("u4", "uint4"),
        ("pred", "bool"),
        ("f8e4m3fn", "float8_e4m3fn"),
        (" BF16 ", "bfloat16"),
        (np.float16, "float16"),
        (np.dtype("complex64"), "complex64"),
        (bool, "bool"),
    ],
)
def test_short_names_and_objects_parse_to_the_same_dtype(spelled, name):
    assert parse_dtype(spelled).name == name


def test_elements_smaller_than_a_byte_are_packed_as_on_an_accelerator():
    assert parse_dtype("int4").n_bytes(3) == 2
    assert parse_dtype("float6_e2m3fn").n_bytes(4) == 3
    # JAX on CPU uses a byte for each, and reports it:
    assert jnp.zeros(3, jnp.int4).nbytes == 3


def test_the_nearest_dtype_is_suggested():
    with pytest.raises(
        UnknownDtype, match=r"Unknown dtype 'blfoat16'\. Did you mean 'bfloat16'\?"
    ) as caught:
        parse_dtype("blfoat16")
    assert caught.value.fix == "a name such as 'bfloat16' or 'f32'."
    with pytest.raises(UnknownDtype) as caught:
        parse_dtype("?")
    assert caught.value.what == "Unknown dtype '?'."
    assert caught.value.fix == "a name such as 'bfloat16' or 'f32'."


@pytest.mark.parametrize("dtype", [3, None, [1]])
def test_an_object_that_is_no_dtype_is_rejected(dtype):
    with pytest.raises(InvalidType, match="is not a dtype"):
        parse_dtype(dtype)
