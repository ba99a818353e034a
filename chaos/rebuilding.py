"""Rebuilds the projection of the lab and repeats until it is done.

Usage: python -m chaos.rebuilding
"""

import itertools
import os
import time
from datetime import timedelta

import click

from chaos.application import build
from chaos.journal import Journal
from holdfast import Refused
from holdfast.core.errors import StoreError


def main() -> None:
    hf, _ = build(os.environ["HOLDFAST_DSN"], ("rebuild",), Journal.from_environment())
    # A rebuild that was interrupted is resumed; one that was not is refused to be resumed, and begins again.
    for resume in itertools.cycle((False, True)):
        try:
            hf.projectors.sync.rebuild("rebuild", actor="lab", resume=resume, lease=timedelta(seconds=2))
        except (StoreError, Refused) as reason:
            click.echo(f"{type(reason).__name__}: {reason}", err=True)
            time.sleep(0.5)
        else:
            return


if __name__ == "__main__":
    main()
