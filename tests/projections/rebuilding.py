"""Rebuilds projectors of the ledger in a separate process, which can be made to die at a named point."""

import sys
from datetime import timedelta

from tests.projections.ledger import hf

if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    hf.projectors.sync.rebuild(*names, actor="ada", resume="--resume" in sys.argv, lease=timedelta(seconds=5))
