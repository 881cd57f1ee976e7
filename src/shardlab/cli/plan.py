"""`shardlab plan`: what each device holds of a whole model, and whether it fits."""

from __future__ import annotations

import click


@click.command("plan")
@click.argument("model")
@click.option("--mesh", required=True, metavar="AXES", help="Mesh axes, such as fsdp=64,tensor=8.")
@click.option("--strategy", metavar="NAME", help="Such as fsdp+tensor.")
@click.option("--hardware", metavar="CHIP", help="Such as tpu-v5p.")
@click.option(
    "--optimizer", default="none", show_default=True, metavar="NAME", help="Such as adamw."
)
def command(
    model: str, mesh: str, strategy: str | None, hardware: str | None, optimizer: str
) -> None:
    """Show what each device holds of MODEL."""
    from shardlab.plans.plan import plan

    made = plan(model, mesh, strategy=strategy, hardware=hardware, optimizer=optimizer)
    click.echo(str(made))
