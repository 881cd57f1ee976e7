"""Judges submissions: draws cases, runs them in sandboxed workers, compares. Never loads JAX.

Read it in this order, which is the order of one submission:

    judge              one submission from end to end
    case_request       one case: its inputs, its requests, the expected result
    worker_client      requests to a worker, retries, replaced processes
    worker_pool        which worker each role runs, in shardlab.sandbox
    protocol/          the typed messages in between
    worker/            tracer (executes the submission, exports programs), runner (runs them)
    failures           no result: findings, exceptions, processes that ended
    case_result        the outcome of a case
    grading/           a result against the expected one
    explain            one cause for all cases of a part
    minimize           the minimal failing case; counterexample describes it
    verdict, judgement, then judgement_text, results_json and junit
"""
