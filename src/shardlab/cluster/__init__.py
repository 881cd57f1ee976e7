"""The same program and the same records on real processes: `shardlab launch`.

The launcher (`launcher.py`) starts one process per host or rank, each runs the user's program under
`jax.distributed` (`process_worker.py`), and every process sends its part of the records back.
Under SLURM, Open MPI, Kubernetes or Ray something else starts the processes, and process 0 collects
(`joined_cluster.py`). The launcher never loads JAX.
"""
