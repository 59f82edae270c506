"""What this machine is, and how busy it was with other things while something was measured."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

MAX_OTHERS, MAX_STEAL = 0.05, 0.02

_STEAL, _NUM_STATES, _IDLE = 7, 8, (3, 4)


@dataclass(frozen=True)
class CpuTimes:
    """Ticks of all cores since boot, and of this process."""

    total: float
    idle: float
    steal: float
    own: float

    @classmethod
    def now(cls) -> CpuTimes | None:
        """None where the system has no /proc/stat."""
        try:
            fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1 : 1 + _NUM_STATES]
        except OSError:
            return None
        ticks, times = [float(f) for f in fields], os.times()
        own = (times.user + times.system) * os.sysconf("SC_CLK_TCK")
        return cls(sum(ticks), sum(ticks[i] for i in _IDLE), ticks[_STEAL], own)


@dataclass(frozen=True)
class Load:
    """Shares of all cores' time: others' work, and time the hypervisor took. None: not known.

    load_average: of the last minute, at the start.
    """

    load_average: float | None
    others_share: float | None
    steal_share: float | None

    @property
    def warnings(self) -> list[str]:
        """A sentence for each thing that makes a measurement doubtful."""
        found = []
        if self.others_share is not None and self.others_share > MAX_OTHERS:
            found.append(
                f"Other programs used {self.others_share:.0%} of the CPU meanwhile: "
                "times are doubtful, repeat on a quiet machine."
            )
        if self.steal_share is not None and self.steal_share > MAX_STEAL:
            found.append(
                f"The hypervisor took {self.steal_share:.0%} of the CPU's time away: "
                "times are doubtful."
            )
        return found


class LoadWatch:
    """Watches from its construction to `stop`."""

    def __init__(self) -> None:
        self._average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        self._start = CpuTimes.now()

    def stop(self) -> Load:
        start, end = self._start, CpuTimes.now()
        if start is None or end is None or end.total <= start.total:
            return Load(self._average, None, None)
        total = end.total - start.total
        steal = (end.steal - start.steal) / total
        busy = 1 - (end.idle - start.idle) / total
        others = busy - steal - (end.own - start.own) / total
        return Load(self._average, max(0.0, others), steal)


def cpu_name() -> str:
    """The processor as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def cache_folder() -> Path:
    """Where specfast keeps what it can make again: $SPECFAST_CACHE, or the user's cache folder."""
    if own := os.environ.get("SPECFAST_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specfast"
