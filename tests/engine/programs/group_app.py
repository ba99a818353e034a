"""The app of `group_worker` for `holdfast worker --app`, so that also a quarantine process can import it.

`HOLDFAST_TEST_GROUP` is its DSN. Each job takes a while, so that many workers die before all have ended.
"""

import os

from tests.engine.programs.group_worker import build

hf, _ = build(os.environ["HOLDFAST_TEST_GROUP"], pause=0.3)
