"""How long to rest before something that failed is tried again. Pure: chance and clock are the caller's."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

# From 0 to 1, of the operating system: the state of `random` belongs to the program that uses this library, which may
# have seeded it, and two workers forked with the same state would rest alike.
any_chance = random.SystemRandom().random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Rests that double after each failure, up to the longest. All in seconds.

    `jitter`: the part of a rest that chance may take away, from 0 (nothing) to 1 (all of it: "full jitter",
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/), so that those who failed in the same
    moment do not all come back in the same moment.
    """

    first_sec: float
    longest_sec: float = math.inf
    jitter: float = 0.0

    def rest_sec(self, failures: int, chance: float = 1.0) -> float:
        """The rest after so many failures in a row (from 1); `chance`: from 0 (the shortest) to 1."""
        rest = min(self.longest_sec, self.first_sec * 2.0 ** min(failures - 1, 64))
        return rest * (1 - self.jitter * (1 - chance))
