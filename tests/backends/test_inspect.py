"""The readers of compilers' words, on real excerpts; occupancy against NVIDIA's own calculator."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.backends._inspect import (
    CODE_OPTIONS,
    GROUPS,
    Resources,
    amdgcn_mix,
    foreign_imports,
    imported_symbols,
    largest,
    launch_bounds,
    parameter_widths,
    ptx_mix,
    read_amdgcn,
    read_ptxas,
    residency,
    sass_mix,
    strange_instruction,
    strange_part,
)
from kernelcast.backends._toolchain import triton_tools
from kernelcast.devices import catalogue, find_device
from kernelcast.types import Device, Evidence, FailureKind

PTXAS = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4moreif' for 'sm_80'
ptxas info    : Function properties for _Z4moreif
    696 bytes stack frame, 792 bytes spill stores, 884 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 696 bytes cumulative stack size, 4224 bytes smem, 372 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 20.051 ms
ptxas info    : Compiling entry function 'kernel' for 'sm_80'
ptxas info    : Function properties for kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers
"""  # noqa: E501  (as it is printed)
PTX = """
.version 9.0
.target sm_90
.visible .entry first(
\t.param .u64 .ptr .global .align 1 first_param_0,
\t.param .u32 first_param_1,
\t.param .align 8 .b8 first_param_2[24]
)
.maxntid 16, 8, 1
.minnctapersm 2
{
\tld.param.u64 \t%rd1, [first_param_0];
\tld.global.v4.f32 \t{%f1, %f2, %f3, %f4}, [%rd1];
\tfma.rn.f32 \t%f5, %f1, %f2, %f3;
\tmad.lo.s32 \t%r1, %r2, %r3, %r4;
\tex2.approx.ftz.f32 \t%f6, %f5;
\tmma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f2};
\tcp.async.cg.shared.global [%r1], [%rd1], 16;
\tcp.async.commit_group;
\tst.shared.f32 \t[%r1], %f6;
\tbar.sync \t0;
\t@%p1 bra \t$L__BB0_2;
\tret;
}
.visible .entry second()
{
\tret;
}
"""
SASS = """
//--------------------- .text.first               --------------------------
\t.section\t.text.first,"ax",@progbits
.text.first:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P1 BRA `(.L_x_0) ;
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/                   HFMA2.MMA R3, -RZ, RZ, 0, 0 ;
        /*0040*/                   HMMA.16816.F32 R4, R4, R8, R12 ;
        /*0050*/               @P0 FFMA R4, R4, R8, R12 ;
        /*0060*/         {         MUFU.EX2 R4, R4 ;
        /*0070*/              @UP0 UIADD3 UR4, UR4, 0x1, URZ ;
        /*0080*/                   STL [R1], R4 ;
        /*0090*/                   NOP ;
//--------------------- .text.second              --------------------------
.text.second:
        /*0000*/                   EXIT ;
"""
AMD = """
kernel:
\ts_load_dwordx4 s[0:3], s[4:5], 0x0
\tv_mov_b32_e32 v1, 0
\tglobal_load_dwordx4 v[2:5], v1, s[0:1]
\ts_waitcnt vmcnt(0)
\tv_fmac_f32_e32 v2, v3, v4
\tv_mfma_f32_32x32x8_f16 a[0:15], v[2:3], v[4:5], a[0:15]
\tv_exp_f32_e32 v2, v2
\tv_add_u32_e32 v1, v1, v2
\tv_add_f32_e32 v1, v1, v2
\tds_write_b64 v1, v[2:3]
\ts_barrier
\tscratch_store_dword off, v2, s32
\ts_nop 0
\ts_endpgm
\t.amdgpu_metadata
amdhsa.kernels:
  - .agpr_count:     16
    .group_segment_fixed_size: 4096
    .private_segment_fixed_size: 20
    .vgpr_count:     84
    .vgpr_spill_count: 3
"""


def test_ptxas_is_read_by_function() -> None:
    read = read_ptxas(PTXAS)
    assert read == {
        "_Z4moreif": Resources(32, 4224, 696, 1676),
        "kernel": Resources(12, 0, 0, 0),
    }
    assert largest(read.values()) == Resources(32, 4224, 696, 1676)
    assert largest([]) is None
    assert read_ptxas("nvcc fatal: nothing of the kind") == {}


def test_ptx_states_parameters_and_bounds() -> None:
    assert parameter_widths(PTX) == {"first": (8, 4, 24), "second": ()}
    assert launch_bounds(PTX) == {"first": 128}


def assert_mix(mix: dict[str, int], **expected: int) -> None:
    total = mix.pop("total")
    assert tuple(mix) == GROUPS
    assert {name: count for name, count in mix.items() if count} == expected
    assert total == sum(expected.values())


def test_ptx_is_sorted() -> None:
    assert_mix(
        ptx_mix(PTX),
        load_constant=1,
        load_global=1,
        fma=1,
        integer=1,
        special=1,
        mma=1,
        async_copy=1,
        store_shared=1,
        sync=2,
        branch=3,
    )


def test_sass_is_sorted_without_padding() -> None:
    size, mix = sass_mix(SASS, "first")
    assert size == 9 * 16
    assert_mix(
        mix,
        load_constant=1,
        branch=1,
        load_global=1,
        fma=2,
        mma=1,
        special=1,
        integer=1,
        store_local=1,
    )
    assert sass_mix(SASS)[1]["total"] == 10
    assert sass_mix(SASS, "third")[1]["total"] == 0


def test_amd_assembly_is_sorted_and_its_metadata_read() -> None:
    assert_mix(
        amdgcn_mix(AMD),
        load_constant=1,
        move=1,
        load_global=1,
        sync=2,
        fma=1,
        mma=1,
        special=1,
        integer=1,
        float=1,
        store_shared=1,
        store_local=1,
        branch=1,
    )
    assert read_amdgcn(AMD) == Resources(84, 4096, 20, 24)
    assert read_amdgcn("kernel:\n\ts_endpgm\n") is None


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    assert read_ptxas(text) == {}
    assert sass_mix(text)[1]["total"] == 0
    for read in (ptx_mix, amdgcn_mix, read_amdgcn, parameter_widths, launch_bounds):
        read(text)


# ----------------------------------------------------------------------------- shared libraries

LIBRARY = """
#include <cmath>
#include <cstdio>
extern "C" int weakly() __attribute__((weak));
extern "C" double kernel(double x) {
    if (weakly) x += weakly();
    std::puts("called");
    return std::sin(x);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("library")
    (folder / "library.cpp").write_text(LIBRARY)
    command = ["g++", "-shared", "-fPIC", "library.cpp", "-o", "library.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=900)
    return (folder / "library.so").read_bytes()


def test_a_library_says_what_it_wants_of_others(library: bytes) -> None:
    imported = imported_symbols(library)
    assert imported is not None
    assert {"sin", "puts", "weakly"} <= imported
    assert "kernel" not in imported


def test_what_is_no_library_says_nothing(library: bytes) -> None:
    for nothing in (b"", b"\x7fELF", b"this is no library" * 100, LIBRARY.encode()):
        assert imported_symbols(nothing) is None
    assert imported_symbols(b"\0" + library[1:]) is None
    stripped = bytearray(library)
    stripped[0x3C:0x3E] = b"\0\0"  # no sections
    assert imported_symbols(bytes(stripped)) is None


def test_a_library_is_refused_for_what_it_wants_or_if_it_does_not_say(
    library: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(library)
    assert foreign_imports(path, lambda _: False) is None
    foreign = foreign_imports(path, lambda name: name in {"sin", "puts", "kernel"})
    assert foreign is not None
    assert foreign.kind is FailureKind.CHEATING
    assert foreign.message.endswith(": puts, sin")
    path.write_bytes(library[:-1])
    silent = foreign_imports(path, lambda _: False)
    assert silent is not None
    assert silent.kind is FailureKind.COMPILE_ERROR


@given(data=st.data())
def test_any_bytes_can_be_read(library: bytes, data: st.DataObject) -> None:
    """Cut off, with fields of the header changed, with anything else changed: it never raises."""
    damaged = bytearray(library)
    places = st.integers(0, 63) | st.integers(0, len(library) - 1)
    for at, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=8)):
        damaged[at] = value
    damaged = damaged[: data.draw(st.just(len(library)) | st.integers(0, len(library)))]
    imported = imported_symbols(bytes(damaged))
    assert imported is None or all(isinstance(name, str) for name in imported)


@given(st.binary(max_size=300))
def test_any_few_bytes_can_be_read(content: bytes) -> None:
    assert imported_symbols(content) is None
    imported_symbols(b"\x7fELF" + content)


@pytest.mark.parametrize("far", [2**63 - 1, 2**63, 2**64 - 1])
def test_a_table_beyond_all_bounds_is_none(library: bytes, far: int) -> None:
    damaged = library[:0x28] + far.to_bytes(8, "little") + library[0x30:]
    assert imported_symbols(damaged) is None


# ----------------------------------------------------------------------------------- occupancy

CALCULATOR = """
#include <climits>
#include <cstddef>
#include "cuda_occupancy.h"
extern "C" int blocks(int major, int minor, int threads_per_core, int registers, size_t shared_core,
                      size_t shared_block, int used_registers, size_t used_shared, int threads) {
    cudaOccDeviceProp device;
    device.computeMajor = major;
    device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = threads_per_core;
    device.regsPerBlock = device.regsPerMultiprocessor = registers;
    device.warpSize = 32;
    device.sharedMemPerBlock = 48 << 10;
    device.sharedMemPerMultiprocessor = shared_core;
    device.numSms = 1;
    device.sharedMemPerBlockOptin = shared_block;
    device.reservedSharedMemPerBlock = major >= 8 ? 1024 : 0;
    cudaOccFuncAttributes function;
    function.maxThreadsPerBlock = INT_MAX;
    function.numRegs = used_registers;
    function.sharedSizeBytes = 0;
    function.partitionedGCConfig = PARTITIONED_GC_OFF;
    function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    function.maxDynamicSharedSizeBytes = shared_block;
    function.numBlockBarriers = 1;
    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, threads,
                                                used_shared))
        return -1;
    return result.activeBlocksPerMultiprocessor;
}
"""
NVIDIA = [device for device in catalogue().values() if device.target.startswith("sm_")]


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    """NVIDIA's cuda_occupancy.h, compiled."""
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    if tools := triton_tools():
        folders.append(tools.parent / "include")
    header = next((folder for folder in folders if (folder / "cuda_occupancy.h").exists()), None)
    if header is None:
        pytest.skip("needs cuda_occupancy.h: install NVIDIA's CUDA toolkit, or Triton")
    folder = tmp_path_factory.mktemp("occupancy")
    (folder / "calculator.cpp").write_text(CALCULATOR)
    command = ["g++", "-shared", "-fPIC", f"-I{header}", "calculator.cpp", "-o", "calculator.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=900)
    blocks = ctypes.CDLL(str(folder / "calculator.so")).blocks
    size, number = ctypes.c_size_t, ctypes.c_int
    blocks.argtypes = [number] * 4 + [size] * 2 + [number, size, number]
    return blocks


def by_the_maker(
    calculator: Callable[..., int], device: Device, registers: int, shared: int, threads: int
) -> float:
    number = device.target.removeprefix("sm_")
    blocks = calculator(
        *(int(number[:-1]), int(number[-1]), device.threads_per_core, device.registers_per_core),
        *(device.shared_bytes_per_core, device.shared_bytes_per_block, registers, shared, threads),
    )
    assert blocks >= 0
    return blocks * -(-threads // 32) / (device.threads_per_core // 32)


@given(
    device=st.sampled_from(NVIDIA),
    registers=st.integers(16, 255),
    shared=st.one_of(st.integers(0, 4096), st.integers(0, 240_000)),
    threads=st.integers(1, 1024),
)
def test_occupancy_is_what_the_maker_computes(
    calculator: Callable[..., int], device: Device, registers: int, shared: int, threads: int
) -> None:
    expected = by_the_maker(calculator, device, registers, shared, threads)
    assert residency(device, registers, shared, threads).occupancy == pytest.approx(expected)


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "blocks", "limiter"),
    [
        (32, 0, 256, 8, "threads"),
        (128, 0, 256, 2, "registers"),
        (32, 40_000, 128, 4, "shared memory"),
        (16, 0, 32, 32, "blocks"),
        (32, 200_000, 32, 0, "shared memory"),
    ],
)
def test_what_allows_no_more_blocks(
    registers: int, shared: int, threads: int, blocks: int, limiter: str
) -> None:
    held = residency(find_device("A100-PCIE-40GB"), registers, shared, threads)
    assert (held.blocks, held.limiter) == (blocks, limiter)


def test_occupancy_on_amd() -> None:
    """By the tables of AMD's ISA guides: 512 registers a lane and 8 waves a SIMD on CDNA."""
    device = find_device("MI300X")
    assert residency(device, 64, 0, 256).occupancy == 1.0
    assert residency(device, 65, 0, 256).occupancy == 0.875
    assert residency(device, 128, 0, 256).occupancy == 0.5
    assert residency(device, 512, 0, 256).occupancy == 0.125
    assert residency(device, 32, 32 << 10, 256).occupancy == 0.25
    assert residency(device, 32, 65 << 10, 256).occupancy == 0.0
    assert residency(find_device("MI50"), 24, 0, 256).occupancy == 1.0
    assert residency(find_device("MI50"), 25, 0, 256).occupancy == 0.9


def test_evidence_stored_before_there_were_gpus_still_loads() -> None:
    stored = '{"kernel_id":"k","toolchain":"g++","code_bytes":3,"instructions":{"total":1}}'
    assert Evidence.model_validate_json(stored).registers is None


# ----------------------------------------------------------------------- code of a restricted C


def listing_of(folder: Path, source: str, *flags: str) -> tuple[bytes, str]:
    """A library, and objdump's list of its code."""
    (folder / "code.c").write_text(source)
    plain = ["-x", "c", "-O1", "-shared", "-fPIC", "-nostdlib", "-fcf-protection=none"]
    command = ["g++", *plain, *flags, "code.c", "-o", "code.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=900)
    told = subprocess.run(
        ["objdump", *CODE_OPTIONS, "code.so"],
        cwd=folder,
        check=True,
        timeout=900,
        capture_output=True,
    )
    return (folder / "code.so").read_bytes(), told.stdout.decode()


SWITCH = """
int chosen(int n) {
    switch (n) {
        case 0: return 7; case 1: return 1 << n; case 2: return n * n * 9; case 3: return 77;
        case 4: return n ^ 12345; case 5: return -n; case 6: return n / 3; default: return 0;
    }
}
int memory(const char* from);
int outside(char* to) { char text[400]; for (int i = 0; i < 400; ++i) text[i] = to[i];
                        return memory(text) + chosen(to[3]); }
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads code of x86")
def test_what_a_compiler_makes_of_c_is_not_strange(tmp_path: Path) -> None:
    library, listing = listing_of(tmp_path, SWITCH)
    assert "jmp" in listing
    assert "*%" in listing, "no jump by a table to be taken for a strange one"
    assert "memory@plt" in listing
    assert strange_instruction(listing) is None
    assert strange_part(library) is None


@pytest.mark.skipif(platform.machine() != "x86_64", reason="writes code of x86")
@pytest.mark.parametrize(
    ("assembly", "found"),
    [
        ("syscall", "syscall"),
        ("sysenter", "sysenter"),
        ("int $0x80", "int $0x80"),
        ("rdtsc", "rdtsc"),
        ("rdtscp", "rdtscp"),
        ("rep outsb", "outsb"),
        ("xbegin 1f\\n1: nop", "xbegin"),
        ("wrfsbase %rax", "wrfsbase"),
        ("mov %fs:0, %rax", "%fs:0x0"),
        ("ldmxcsr (%rsp)", "ldmxcsr"),
        ("call *%rax", "call *%rax"),
        ("call *8(%rax)", "call *0x8(%rax)"),
        ("jmp *%rax", "jmp *%rax"),
        ("jmp 1f + 2\\n1: movabs $0x0eeb9090050f, %r11", "jmp"),
        (".byte 0x06", "(bad)"),
        (".type hidden,@object\\nhidden: .byte 0x0f, 0x05", "syscall"),
        (".fill 64, 1, 0\\nsyscall", "syscall"),
    ],
)
def test_code_that_no_compiler_makes_is_found(tmp_path: Path, assembly: str, found: str) -> None:
    _, listing = listing_of(tmp_path, f'void f(void) {{ __asm__ volatile("{assembly}"); }}\n')
    told = strange_instruction(listing)
    assert told is not None
    assert found in " ".join(told.split())


@pytest.mark.parametrize(
    ("source", "flags", "found"),
    [
        ("__attribute__((constructor)) void f(void) {}", (), "INIT_ARRAY"),
        ("__attribute__((destructor)) void f(void) {}", (), "FINI_ARRAY"),
        ("void f(void) {}", ("-Wl,-init,f",), "INIT"),
        ("void f(void) {}", ("-Wl,-z,execstack",), "written and executed"),
        ('__asm__(".section .patch,\\"awx\\"\\n.byte 0\\n.text");', (), "written and executed"),
        ('__asm__(".section .more,\\"ax\\"\\n.byte 0\\n.text");', (), "code in b'.more'"),
        (
            "static int g(void) { return 1; } static void* r(void) { return (void*)g; }\n"
            'static int f(void) __attribute__((ifunc("r"))); int h(void) { return f(); }',
            (),
            "chosen when it is loaded",
        ),
        ('__asm__("\\"a\\\\n 1003:\\": nop\\n.globl \\"a\\\\n 1003:\\"");', (), "no names"),
    ],
)
def test_parts_that_no_linker_makes_of_opencl_are_found(
    tmp_path: Path, source: str, flags: tuple[str, ...], found: str
) -> None:
    library, _ = listing_of(tmp_path, f"{source}\nvoid code(void) {{}}\n", *flags)
    told = strange_part(library)
    assert told is not None
    assert found in told


@given(data=st.data())
def test_parts_of_any_bytes_can_be_read(library: bytes, data: st.DataObject) -> None:
    damaged = bytearray(library)
    places = st.integers(0, 63) | st.integers(0, len(library) - 1)
    for at, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=8)):
        damaged[at] = value
    told = strange_part(bytes(damaged[: data.draw(st.integers(0, len(library)))]))
    assert told is None or len(told) < 200
