"""`python -m shardlab`: the command line, on a machine whose PATH does not have `shardlab`."""

from shardlab.cli import main

if __name__ == "__main__":
    main(prog_name="shardlab")
