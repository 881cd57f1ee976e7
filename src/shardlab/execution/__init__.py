"""A user's program in a child process under limits.

`parse_target` reads what the user named, a `Job` carries the request, `run_worker` starts the child
process, and a `WorkerResult` (or a `LabError`) comes back.
"""
