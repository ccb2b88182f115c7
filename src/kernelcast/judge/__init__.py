"""Judge parts of a search: what they find, what they cost, and what that proves.

Each module answers one question:

- `evaluation`: How good are a forecaster's forecasts of recorded kernels?
- `replaying`: What does a policy find, save and miss on a recorded space or search?
- `comparison`: Which of several arms that differ in one part finds faster kernels here?
- `ranking`: Which kernels of a pool are worth a measurement, and how many of them?
- `sharing`: How do the arms of a comparison get the same proposals and the same timing noise?
- `curves`: How does the best kernel found rise with the number of measurements?

Scores of single forecasts are in `kernelcast.scoring`; tables and figures are in
`kernelcast.report`. Nothing here changes what a search does.

The stub `__init__.pyi` lists the public names.
"""

from kernelcast.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
