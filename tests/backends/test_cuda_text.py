"""CUDA text as C++: launches, shared memory, headers; what is unknown is said."""

from __future__ import annotations

import pytest

from kernelcast.backends._cuda_text import Unknown, cpp


@pytest.mark.parametrize(
    ("cuda", "made"),
    [
        (
            "add<<<n, 256>>>(x, y);",
            '::kc::launch("add", ::kc::Config(n, 256), [&](auto&... kc_a) { add(kc_a...); },x, y);',
        ),
        (
            "my::sum<float, (N > 3)><<<dim3(n, 2), f<g<1>>(3), 0, s>>>();",
            '::kc::launch("my::sum<float, (N > 3)>", ::kc::Config(dim3(n, 2), f<g<1>>(3), 0, s), '
            "[&](auto&... kc_a) { my::sum<float, (N > 3)>(kc_a...); });",
        ),
        (
            "__shared__ float tile[16][16 + 1];",
            "static ::kc::Shared kc_tile; auto& tile = kc_tile.template get<float[16][16 + 1]>();",
        ),
        (
            "__shared__ typename Reduce::TempStorage room;",
            "static ::kc::Shared kc_room; "
            "auto& room = kc_room.template get<typename Reduce::TempStorage>();",
        ),
        (
            "__shared__ __align__(16) unsigned int a, b[2];",
            "static ::kc::Shared kc_a; auto& a = kc_a.template get<unsigned int>(); "
            "static ::kc::Shared kc_b; auto& b = kc_b.template get<unsigned int[2]>();",
        ),
        (
            "extern __shared__ __align__(8) unsigned char raw[];",
            "unsigned char* const raw = (unsigned char*)::kc::dynamic_shared;",
        ),
        ("TORCH_CHECK(x.is_cuda());", "TORCH_CHECK(x.is_cpu());"),
        ("torch::Device(torch::kCUDA)", "torch::Device(torch::kCPU)"),
        ('extern "C" __global__ void k();', "__global__ void k();"),
        ("#include <cub/block/block_reduce.cuh>", "#include <cub/cub.cuh>"),
        ("#include <cuda_runtime.h>", ""),
        ('f("// no comment");', 'f("// no comment");'),
    ],
)
def test_cuda_becomes_cpp(cuda: str, made: str) -> None:
    assert cpp(cuda).strip() == made


def test_lines_keep_their_numbers() -> None:
    cuda = (
        "a; /* one\ntwo */\nk<<<\n  n,\n  256\n>>>\n  (x,\n   y);\n__shared__ float\n  s[3];\nlast;"
    )
    assert cpp(cuda).splitlines().index("last;") == cuda.splitlines().index("last;")


@pytest.mark.parametrize(
    ("cuda", "why"),
    [
        ('asm volatile("mov.u32 %0, %laneid;" : "=r"(lane));', "PTX"),
        ("__shared__ float s[64]; volatile float* v = s;", "lockstep"),
        ("__shared__ float (*pointer)[3];", "unknown form"),
        ("k<<<1, 2", "without its end"),
        ("k<<<1, 2>>>;", "unknown form"),
    ],
)
def test_what_is_unknown_is_said(cuda: str, why: str) -> None:
    with pytest.raises(Unknown, match=why):
        cpp(cuda)
