"""Work on programs and files of other people: in confined processes, under limits.

`lab_pool` opens the sandbox, `confined_client` sends one request to a new process, `lab_process` is
what runs inside.
"""
