"""What the measured texts of a run say, beside the trees: each is trusted as far as it was right.

Trees that were trained on other kernels know nothing of what is special about a problem and a
device. The texts measured in the run do, once there are some. Which of both is the better varies
from run to run, so each measurement is compared with what both foresaw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelcast.distribution import Distribution
from kernelcast.forecasters._features import Terms
from kernelcast.forecasters._text_process import FEWEST, TextProcess
from kernelcast.scoring import crps

_FIRST_ODDS = math.log(0.2 / 0.8)  # log odds of the texts against the trees
_PACE = 2.0  # largest change of the log odds by one measurement
_MOST_ODDS = 4.0


class SecondOpinion:
    """Blends forecasts with those of a text process, by what was measured in the run."""

    def __init__(self) -> None:
        self._process = TextProcess()
        self._odds = _FIRST_ODDS
        self._unread: list[tuple[Terms, float, Distribution | None]] = []

    def learn(self, text: Terms, log2_speedup: float, foreseen: Distribution | None = None) -> None:
        """Take in a measurement, and the first opinion's forecast of it; read at the next blend."""
        if text.hashes.size:
            self._unread.append((text, log2_speedup, foreseen))

    def blended(
        self, texts: Sequence[Terms], forecasts: Sequence[Distribution]
    ) -> list[Distribution]:
        """Return the forecasts of some texts, blended with what is known of such texts.

        All log2 speedups are against the same kernel. An empty text keeps its forecast.
        """
        for measurement in self._unread:
            self._read(*measurement)
        self._unread.clear()
        if len(self._process) < FEWEST:
            return list(forecasts)
        share = 1.0 / (1.0 + math.exp(-self._odds))
        return [
            Distribution.mixture((first, second), (1.0 - share, share))
            if text.hashes.size
            else first
            for text, first, second in zip(
                texts, forecasts, self._process.forecast(texts), strict=True
            )
        ]

    def _read(self, text: Terms, log2_speedup: float, foreseen: Distribution | None) -> None:
        if foreseen is not None and len(self._process) >= FEWEST:
            (by_texts,) = self._process.forecast([text])
            first, second = crps(foreseen, log2_speedup), crps(by_texts, log2_speedup)
            # A share of both errors: neither an outlier nor the scale of a run counts for more.
            odds = self._odds + _PACE * (first - second) / (first + second)
            self._odds = min(max(odds, -_MOST_ODDS), _MOST_ODDS)
        self._process.add(text, log2_speedup)
