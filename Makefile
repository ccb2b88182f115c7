# `make check` is what CI runs; `make fast` is the short path while working: unit, property and
# contract tests, which take at most 3 minutes of CPU.
.PHONY: check coverage fast format measure

check:
	.ci/run

fast:
	ruff format --check .
	ruff check .
	mypy
	lint-imports
	OMP_NUM_THREADS=1 pytest -q -n 2 --dist worksteal -m "not slow and not measures and not full"

# Which lines the tests run; below 90% it fails. It takes half as long again as the tests alone.
coverage:
	OMP_NUM_THREADS=1 pytest -q -n 2 --dist worksteal --cov --cov-report=term

# The tests that the gate leaves out, then every bench in full, each figure against its bar: hours.
# `python bench/measure.py --only NAME` runs one bench.
measure:
	OMP_NUM_THREADS=1 pytest -q -n 2 --dist worksteal -m full
	python bench/measure.py

format:
	ruff format .
	ruff check --fix .
