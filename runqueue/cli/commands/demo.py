"""`demo`: a fleet to look at."""

from __future__ import annotations

import click


@click.command("demo", epilog="\b\nExample:\n  runqueue demo")
@click.option("--plain", is_flag=True, help="Print plain lines, on a terminal too.")
def demo(plain: bool) -> int:
    """See it work, without any database.

    Starts a PostgreSQL of its own and several workers, kills one in the middle of a run, and shows how another takes
    the run over and goes on from its checkpoint. Ends with what the database says, and leaves nothing behind.
    """
    from runqueue.demo import main

    return main(plain=plain)
