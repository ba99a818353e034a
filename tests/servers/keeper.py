"""Runs one server and ends it when the process that it is for is gone.

Usage: python keeper.py OWNER_PID UID:GID|- DIRECTORY COMMAND…

Prints the server's process id on its first line. When the owner dies, in any way, the server is
stopped and DIRECTORY is removed. The owner is the test process, or the one that started all test processes if they
share the server. It is watched by a process descriptor and not by `PR_SET_PDEATHSIG`,
which fires when the *thread* that started the server ends. The keeper stays the user it is and only the
server changes to UID, because an interpreter may live where an unprivileged user cannot go. It uses the
standard library only, so that it starts in a few milliseconds.
"""

import os
import select
import shutil
import signal
import subprocess
import sys

CHECK_EVERY_SECONDS = 0.5
PATIENCE_SECONDS = 5.0


def main(owner: int, user: str, directory: str, command: list[str]) -> int:
    try:
        watched = os.pidfd_open(owner)
    except ProcessLookupError:
        return 1
    uid, gid = (None, None) if user == "-" else map(int, user.split(":"))
    server = subprocess.Popen(
        command,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        user=uid,
        group=gid,
        extra_groups=None if uid is None else [],
    )
    print(server.pid, flush=True)
    # Blocked only now: a server must not inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while server.poll() is None:
        if select.select([watched], [], [], 0)[0]:
            _end(server)
            shutil.rmtree(directory, ignore_errors=True)
            return 1
        signal.sigtimedwait({signal.SIGCHLD}, CHECK_EVERY_SECONDS)
    return abs(server.returncode)


def _end(server: subprocess.Popen[bytes]) -> None:
    """SIGQUIT is an immediate shutdown to PostgreSQL and PgBouncer; SIGKILL if it is not heard."""
    server.send_signal(signal.SIGQUIT)
    try:
        server.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
