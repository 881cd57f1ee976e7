"""What runs inside the judge's sandboxed processes. Nothing here decides a verdict.

The tracer shares its interpreter with the submission, so it can be made to report anything:

    tracer                serves requests about one submission
    loaded_submission     its source, its functions, and its results as arrays
    jax_overrides         the devices and placement functions that it sees
    tracing               shapes in, findings and an exported program out
    simulation            meshes that are larger than the machine
    page_examples         scripts and doctests of a problem's page

The runner never sees the submission, only programs that may be hostile:

    runner                validates, compiles and runs exported programs on the hidden inputs
    compiled_collectives  what a compiled program communicates

The reference process executes `reference.py` of an uploaded catalogue. It has no JAX, and never
sees a submission:

    reference_process     inputs of a case, the expected result, specs, budgets, properties

Tracer and runner use `error_reports` (exceptions as data) and `worker_process` (the request loop,
compiler settings); `warmup` runs once in the fork server.
"""
