"""How long requests waited, as histograms: an observation is a search among bounds and an addition,
since there is one a sequence and step.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specfast.request_metrics import RequestMetrics

# Seconds, from a fast step to a long answer on a slow machine.
BOUNDS = tuple(m * 10.0**e for e in range(-3, 3) for m in (1, 2.5, 5)) + (1000.0,)


class Histogram:
    """counts[i]: values up to bounds[i] and above the one before; the last: above them all."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, values up to it), as Prometheus has it."""
        names = [*map(str, self.bounds), "+Inf"]
        return [(name, float(n)) for name, n in zip(names, accumulate(self.counts))]


@dataclass(frozen=True)
class Latencies:
    """Of all requests so far, in seconds.

    inter_token_latency: between two emissions of a request, each of one token or more.
    request_time_per_output_token: of a whole answer, after its first token.
    """

    time_to_first_token: Histogram = field(default_factory=Histogram)
    inter_token_latency: Histogram = field(default_factory=Histogram)
    request_time_per_output_token: Histogram = field(default_factory=Histogram)
    e2e_request_latency: Histogram = field(default_factory=Histogram)

    def emitted(self, request: RequestMetrics, now: float) -> None:
        """A step brought tokens. Call before the request counts them."""
        times = request.token_times
        if not times:
            self.time_to_first_token.observe(now - request.arrival_time)
        elif now > times[-1]:  # another choice may have come in this very step
            self.inter_token_latency.observe(now - times[-1])

    def finished(self, request: RequestMetrics, now: float) -> None:
        """The request is over; one that never got a token had no latency."""
        times = request.token_times
        if not times:
            return
        self.e2e_request_latency.observe(now - request.arrival_time)
        if len(times) > 1:
            per_token = (times[-1] - times[0]) / (len(times) - 1)
            self.request_time_per_output_token.observe(per_token)
