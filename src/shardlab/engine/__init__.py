"""Runs programs: the only room that imports JAX."""

from shardlab.engine.peek import Peek, forget_peeks, peek, peeks
from shardlab.engine.replicas import ReplicasDiffer
from shardlab.engine.shard_map import shard_map
from shardlab.engine.shards import DeviceShard, shards
from shardlab.engine.simulated import simulated
from shardlab.engine.virtual import virtual_mesh

__all__ = [
    "DeviceShard",
    "Peek",
    "ReplicasDiffer",
    "forget_peeks",
    "peek",
    "peeks",
    "shard_map",
    "shards",
    "simulated",
    "virtual_mesh",
]
