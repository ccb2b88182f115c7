"""Configurations of tuned kernels as sources, by Kernel Tuner's conventions."""

from __future__ import annotations

import pytest

from kernelcast.backends._launch import read_launch
from kernelcast.dataset.tuned_kernel import TunedKernel, from_cache
from kernelcast.errors import SetupError

TEMPLATE = """__global__ void add(float* out, int n) {
    #pragma unroll loop_unroll_factor_x
    for (int i = 0; i < tile_size_x; i++) out[i] = PRECISION;
}"""
TILED = (("block_size_x", "tile_size_x"), ("block_size_y",))


def test_a_configuration_states_its_macros_and_its_launch() -> None:
    kernel = TunedKernel(TEMPLATE, "add", (1000, 30), TILED, defines={"PRECISION": 32})
    configuration = {"block_size_x": 32, "block_size_y": 4, "tile_size_x": 3}
    source = kernel.source(configuration)
    assert "#define PRECISION 32\n" in source
    assert "#define tile_size_x 3\n" in source
    assert source.endswith(TEMPLATE)
    launch = read_launch(source)
    assert launch is not None
    assert launch.grid_extent({}) == kernel.grid(configuration) == (11, 8, 1)
    assert launch.block_extent({}) == kernel.threads(configuration) == (32, 4, 1)


def test_a_factor_of_unrolling_is_a_constant_and_zero_leaves_it_to_the_compiler() -> None:
    kernel = TunedKernel(TEMPLATE, "add", (64,))
    two = kernel.source({"block_size_x": 32, "loop_unroll_factor_x": 2})
    assert "constexpr int loop_unroll_factor_x = 2;" in two
    assert "#pragma unroll loop_unroll_factor_x" in two
    none = kernel.source({"block_size_x": 32, "loop_unroll_factor_x": 0})
    assert "loop_unroll_factor_x" not in none


def test_a_cache_names_entry_size_and_constants() -> None:
    cache = {
        "kernel_name": "add",
        "problem_size": [4096, 16],
        "tune_params": {"block_size_x": [32, 64], "PRECISION": [32]},
    }
    kernel = from_cache(cache, TEMPLATE)
    assert (kernel.entry, kernel.defines) == ("add", {"PRECISION": 32})
    assert kernel.grid({"block_size_x": 64}) == (64, 16, 1)
    tiled = from_cache(cache | {"problem_size": 4096}, TEMPLATE, TILED)
    assert tiled.grid({"block_size_x": 64, "tile_size_x": 2}) == (32, 1, 1)
    with pytest.raises(SetupError, match="lacks 'tune_params'"):
        from_cache({"kernel_name": "add", "problem_size": 1}, TEMPLATE)
