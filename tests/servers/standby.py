"""A streaming standby of a PostgresServer, from `pg_basebackup` of the same binaries."""

import subprocess

from tests.servers.postgres import PostgresServer, binaries
from tests.servers.process import unprivileged_user


class StandbyServer(PostgresServer):
    """Follows a running primary until it is promoted; then it is a primary itself, on its own port."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(primary.version, durable=primary.durable, settings=primary.settings)
        # The name of the standby that `synchronous_standby_names` of the primary refers to.
        self._primary = f"host=127.0.0.1 port={primary.port} user=postgres application_name=standby"
        # A standby must not wait for itself after its promotion.
        self.settings["synchronous_standby_names"] = ""

    def promote(self) -> None:
        """Makes it the primary; returns when it accepts writes."""
        self.execute("select pg_promote(true, 60)")

    def _prepare(self) -> None:
        user = unprivileged_user()
        subprocess.run(
            [
                *(binaries(self.version) / "pg_basebackup", "--dbname", self._primary, "--pgdata", self._data),
                *("--checkpoint=fast", "--no-sync", "--wal-method=stream", "--write-recovery-conf"),
            ],
            cwd=self.directory,
            check=True,
            stdout=subprocess.DEVNULL,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
        )

    def _is_ready(self) -> bool:
        # A standby that serves queries reports `standby`, and `ready` once it is promoted.
        return super()._is_ready() or self._state() == "standby"
