"""Facts about the machine that results depend on, and nothing that identifies it."""

import os
import platform
import sqlite3
import sys
from pathlib import Path

import psutil


def machine() -> dict[str, object]:
    """Cores, memory, kernel, processor, Python and SQLite."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "processor": _processor(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "sqlite": sqlite3.sqlite_version,
    }


def load() -> float:
    """How busy the machine has been in the last minute; above one per core the figures say little."""
    return os.getloadavg()[0]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
