"""`python -m shardlab.cli`, for a machine whose PATH does not have the `shardlab` command."""

from shardlab.cli import main

if __name__ == "__main__":
    main(prog_name="shardlab")
