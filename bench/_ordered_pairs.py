"""Pairs of CUDA kernels whose order is known without measuring: the slower and the faster one.

The two kernels of a pair compute the same, at a size where the difference is not hidden by the
traffic of DRAM on an A100 or RTX 3090. The order is that of common knowledge about GPUs, stated
before any estimate was made.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelcast.canonical import as_kernel
from kernelcast.types import Argument, Case, Fill, Kernel, Problem, Tolerance

_C_TYPES = {"float32": "float", "float64": "double", "int32": "int", "int64": "long"}
_ITEM_BYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8}
_WHOLE = Fill(kind="integers", low=0, high=2**30)


@dataclass(frozen=True)
class Pair:
    """Two kernels of one problem; `kind` names what makes the slow one slow."""

    name: str
    kind: str
    problem: Problem
    slow: Kernel
    fast: Kernel


@dataclass(frozen=True)
class Code:
    """A kernel without its signature."""

    grid: str
    block: str
    body: str
    shared: str = "0"
    bounds: str = ""

    def source(self, signature: str) -> str:
        """Return the source in kernelcast's form."""
        launch = f"grid({self.grid}) block({self.block}) shared({self.shared})"
        includes = "#include <mma.h>\n" if "half*" in self.body else ""
        head = f'extern "C" __global__ void {self.bounds}kernel({signature})'
        return f"{includes}#pragma kernelcast {launch}\n{head} {{{self.body}}}\n"


def both(
    grid: str, block: str, body: str, slow: str, fast: str, shared: str = "0"
) -> tuple[Code, Code]:
    """Two kernels that differ in the text at `@@`."""
    return (
        Code(grid, block, body.replace("@@", slow), shared),
        Code(grid, block, body.replace("@@", fast), shared),
    )


def pair(kind: str, name: str, arrays: str, sizes: str, codes: tuple[Code, Code]) -> Pair:
    """A pair of a problem stated in short.

    Args:
        kind: What makes the slow kernel slow.
        name: Name of the pair.
        arrays: `name:shape` or `name:shape:dtype` of each array; outputs begin with "out".
        sizes: `name=value` of each dimension.
        codes: The slower and the faster kernel.
    """
    arguments = []
    for text in arrays.split():
        array, shape, dtype, *_ = [*text.split(":"), "float32"]
        arguments.append(
            Argument.model_validate(
                {
                    "name": array,
                    "role": "output" if array.startswith("out") else "input",
                    "dtype": dtype,
                    "shape": shape.split(","),
                    "fill": _WHOLE if dtype.startswith("int") else Fill(),
                }
            )
        )
    dimensions = {key: int(value) for key, value in (size.split("=") for size in sizes.split())}
    pointers = (
        f"{'const ' if argument.role == 'input' else ''}{_C_TYPES[argument.dtype]}* "
        f"__restrict__ {argument.name}"
        for argument in arguments
    )
    signature = ", ".join([*pointers, *(f"int {dimension}" for dimension in dimensions)])
    slow, fast = (code.source(signature) for code in codes)
    sums = (f"{_ITEM_BYTES[one.dtype]}*({')*('.join(one.shape)})" for one in arguments)
    problem = Problem(
        name=name,
        family=kind.replace(" ", "_"),
        summary=f"{name}: two kernels of known order",
        language="cuda",
        entry="kernel",
        dimensions=tuple(dimensions),
        arguments=tuple(arguments),
        cases=(Case(name="main", dimensions=dimensions),),
        flops="1",
        bytes="+".join(sums),
        tolerance=Tolerance(rtol=1e-3, atol=1e-3),
        oracle_source="",
        seed_source=slow,
    )
    kernels = [as_kernel(source, "cuda") for source in (slow, fast)]
    return Pair(name, kind, problem, *kernels)


# ----------------------------------------------------------------------------- pieces of kernels

_I = "int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
_EACH = "(N + 255) / 256"
"""Blocks of 256 threads, one for each of N elements."""

_WARP_SUM = "for (int d = 16; d; d >>= 1) s += __shfl_down_sync(~0u, s, d);\n"
_BLOCK_SUM = (
    _WARP_SUM
    + """
    __shared__ float parts[32];
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = s;
    __syncthreads();
    s = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0;
    if (threadIdx.x < 32) {"""
    + _WARP_SUM
    + "}\n"
)

_NAIVE_PRODUCT = """
    int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
    float s = 0;
    for (int k = 0; k < K; k++) s += a[i * K + k] * b[k * N + j];
    out[i * N + j] = s;
"""


def tile_product(size: int, **changes: str) -> Code:
    """A product by shared tiles, an element a thread; changes replace the named pieces."""
    pieces = {"PAD": "", "SUM": "float s = 0;", "LEFT": "a[i * K + k + x]"}
    pieces |= {"TERM": "as[y][q] * bs[q][x]", "PLACE": "bs[y][x]"}
    body = """
    __shared__ float as[T][T], bs[T][T PAD];
    int x = threadIdx.x, y = threadIdx.y, j = blockIdx.x * T + x, i = blockIdx.y * T + y;
    SUM
    for (int k = 0; k < K; k += T) {
        as[y][x] = LEFT; PLACE = b[(k + y) * N + j];
        __syncthreads();
        for (int q = 0; q < T; q++) s += TERM;
        __syncthreads();
    }
    out[i * N + j] = s;
    """
    for piece, text in (pieces | changes).items():
        body = body.replace(piece, text)
    body = body.replace("T]", f"{size}]").replace("[T ", f"[{size} ").replace("* T ", f"* {size} ")
    body = body.replace("+= T)", f"+= {size})").replace("< T;", f"< {size};")
    return Code(f"N / {size}, M / {size}", f"{size}, {size}", body)


def register_product(side: int, bounds: str = "") -> Code:
    """A product where each of 256 threads keeps side x side sums in registers."""
    tile = 16 * side
    body = """
    __shared__ float as[8][TILE + 1], bs[8][TILE];
    int t = threadIdx.x, x = t % 16, y = t / 16, i = blockIdx.y * TILE, j = blockIdx.x * TILE;
    float s[SIDE][SIDE] = {};
    for (int k = 0; k < K; k += 8) {
        for (int e = t; e < TILE * 8; e += 256) {
            as[e % 8][e / 8] = a[(i + e / 8) * K + k + e % 8];
            bs[e / TILE][e % TILE] = b[(k + e / TILE) * N + j + e % TILE];
        }
        __syncthreads();
        #pragma unroll
        for (int q = 0; q < 8; q++)
            #pragma unroll
            for (int r = 0; r < SIDE; r++)
                #pragma unroll
                for (int c = 0; c < SIDE; c++) s[r][c] += as[q][y + 16 * r] * bs[q][x + 16 * c];
        __syncthreads();
    }
    #pragma unroll
    for (int r = 0; r < SIDE; r++)
        #pragma unroll
        for (int c = 0; c < SIDE; c++) out[(i + y + 16 * r) * N + j + x + 16 * c] = s[r][c];
    """
    body = body.replace("TILE", str(tile)).replace("SIDE", str(side))
    return Code(f"N / {tile}, M / {tile}", "256", body, bounds=bounds)


_PRODUCT = "a:M,K b:K,N out:M,N"
_UNCOALESCED_PRODUCT = Code(
    "M / 32, N / 32",
    "32, 32",
    _NAIVE_PRODUCT.replace("int j = blockIdx.x", "int i = blockIdx.x").replace(
        "threadIdx.x, i = blockIdx.y", "threadIdx.x, j = blockIdx.y"
    ),
)

_TRANSPOSE_TILE = """
    __shared__ TYPE tile[32][33];
    int x = threadIdx.x, i = blockIdx.y * 32, j = blockIdx.x * 32;
    for (int r = threadIdx.y; r < 32; r += 8) tile[r][x] = in[(i + r) * N + j + x];
    __syncthreads();
    for (int r = threadIdx.y; r < 32; r += 8) out[(j + r) * M + i + x] = tile[x][r];
"""
_TRANSPOSE_NAIVE = """
    int j = blockIdx.x * 32 + threadIdx.x;
    for (int r = threadIdx.y; r < 32; r += 8) {
        int i = blockIdx.y * 32 + r;
        out[j * M + i] = in[i * N + j];
    }
"""


def iterated(step: str, before: str = "", steps: int = 256) -> str:
    """A body that changes a number of its element many times."""
    loop = f"for (int k = 0; k < {steps}; k++) {{ {step} }}"
    return f"\n    {_I}    float v = x[i];\n    {before}\n    {loop}\n    out[i] = v;\n"


# ------------------------------------------------------------------------------------- the pairs

_ACCESS = (
    pair(
        "coalescing",
        "copy in chunks of 64 a thread",
        "x:N out:N",
        "N=16777216",
        (
            Code(
                "N / 16384",
                "256",
                f"{_I} for (int k = 0; k < 64; k++) out[i * 64 + k] = x[i * 64 + k];",
            ),
            Code(
                "N / 16384",
                "256",
                """
    int i = blockIdx.x * 16384 + threadIdx.x;
    for (int k = 0; k < 64; k++) out[i + k * 256] = x[i + k * 256];
    """,
            ),
        ),
    ),
    pair(
        "coalescing",
        "row sums by a thread a row",
        "x:M,N out:M",
        "M=65536 N=1024",
        (
            Code(
                "M / 256",
                "256",
                f"""
    {_I} float s = 0; for (int j = 0; j < N; j++) s += x[i * N + j]; out[i] = s;
    """,
            ),
            Code(
                "M / 8",
                "256",
                f"""
    {_I} int row = i / 32, lane = i % 32; float s = 0;
    for (int j = lane; j < N; j += 32) s += x[row * N + j];
    {_WARP_SUM} if (!lane) out[row] = s;
    """,
            ),
        ),
    ),
    pair(
        "coalescing",
        "scaling with threads down the columns",
        "x:M,N out:M,N",
        "M=4096 N=4096",
        (
            Code(
                "M / 256, N",
                "256",
                """
    int i = blockIdx.x * 256 + threadIdx.x, j = blockIdx.y;
    out[i * N + j] = 2 * x[i * N + j];
    """,
            ),
            Code(
                "N / 256, M",
                "256",
                """
    int j = blockIdx.x * 256 + threadIdx.x, i = blockIdx.y;
    out[i * N + j] = 2 * x[i * N + j];
    """,
            ),
        ),
    ),
    pair(
        "coalescing",
        "bias of 64 channels by a thread a pixel",
        "x:P,C b:C out:P,C",
        "P=262144 C=64",
        (
            Code(
                "P / 128",
                "128",
                f"""
    {_I} for (int c = 0; c < C; c++) out[i * C + c] = x[i * C + c] + b[c];
    """,
            ),
            Code("P * C / 256", "256", f"{_I} out[i] = x[i] + b[threadIdx.x % 64];"),
        ),
    ),
    pair(
        "coalescing",
        "matrix times vector by a thread a row",
        "a:M,N x:N out:M",
        "M=16384 N=4096",
        (
            Code(
                "M / 64",
                "64",
                f"""
    {_I} float s = 0; for (int j = 0; j < N; j++) s += a[i * N + j] * x[j]; out[i] = s;
    """,
            ),
            Code(
                "M",
                "256",
                f"""
    int i = blockIdx.x; float s = 0;
    for (int j = threadIdx.x; j < N; j += 256) s += a[i * N + j] * x[j];
    {_BLOCK_SUM} if (!threadIdx.x) out[i] = s;
    """,
            ),
        ),
    ),
    pair(
        "coalescing",
        "softmax by a thread a row",
        "x:M,N out:M,N",
        "M=8192 N=2048",
        (
            Code(
                "M / 64",
                "64",
                _I
                + """
    float m = -1e30f, s = 0; for (int j = 0; j < N; j++) m = fmaxf(m, x[i * N + j]);
    for (int j = 0; j < N; j++) s += __expf(x[i * N + j] - m);
    for (int j = 0; j < N; j++) out[i * N + j] = __expf(x[i * N + j] - m) / s;
    """,
            ),
            Code(
                "M / 8",
                "256",
                _I
                + """
    float m = -1e30f, s = 0; int row = i / 32, lane = i % 32;
    for (int j = lane; j < N; j += 32) m = fmaxf(m, x[row * N + j]);
    for (int d = 16; d; d >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    for (int j = lane; j < N; j += 32) s += __expf(x[row * N + j] - m);
    for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
    for (int j = lane; j < N; j += 32) out[row * N + j] = __expf(x[row * N + j] - m) / s;
    """,
            ),
        ),
    ),
    pair(
        "transpose",
        "transpose without a tile",
        "in:M,N out:N,M",
        "M=8192 N=8192",
        (
            Code("N / 32, M / 32", "32, 8", _TRANSPOSE_NAIVE),
            Code("N / 32, M / 32", "32, 8", _TRANSPOSE_TILE.replace("TYPE", "float")),
        ),
    ),
    pair(
        "transpose",
        "order of three axes reversed without a tile",
        "in:A,B,C out:C,B,A",
        "A=512 B=64 C=512",
        (
            Code(
                "C / 32, A / 32, B",
                "32, 8",
                """
    int c = blockIdx.x * 32 + threadIdx.x, b = blockIdx.z;
    for (int r = threadIdx.y; r < 32; r += 8) { int a = blockIdx.y * 32 + r;
        out[(c * B + b) * A + a] = in[(a * B + b) * C + c];
    }
    """,
            ),
            Code(
                "C / 32, A / 32, B",
                "32, 8",
                """
    __shared__ float tile[32][33];
    int x = threadIdx.x, c = blockIdx.x * 32, b = blockIdx.z, a = blockIdx.y * 32;
    for (int r = threadIdx.y; r < 32; r += 8) tile[r][x] = in[((a + r) * B + b) * C + c + x];
    __syncthreads();
    for (int r = threadIdx.y; r < 32; r += 8) out[((c + r) * B + b) * A + a + x] = tile[x][r];
    """,
            ),
        ),
    ),
    pair(
        "vector access",
        "bytes inverted one by one",
        "x:N:int32 out:N:int32",
        "N=16777216",
        (
            Code(
                "N / 64",
                "256",
                f"""
    {_I} ((unsigned char*)out)[i] = 255 - ((const unsigned char*)x)[i];
    """,
            ),
            Code(
                "N / 1024",
                "256",
                f"""
    {_I} uint4 v = ((const uint4*)x)[i];
    ((uint4*)out)[i] = make_uint4(~v.x, ~v.y, ~v.z, ~v.w);
    """,
            ),
        ),
    ),
    pair(
        "reading twice",
        "mean and variance of long rows in two passes",
        "x:M,N out:M,2",
        "M=256 N=262144",
        (
            Code(
                "M",
                "1024",
                """
    const float* row = x + blockIdx.x * N; __shared__ float mean; { float s = 0;
        for (int j = threadIdx.x; j < N; j += 1024) s += row[j];
    """
                + _BLOCK_SUM
                + """
    if (!threadIdx.x) mean = s / N; __syncthreads();
}
float s = 0;
for (int j = threadIdx.x; j < N; j += 1024) { float d = row[j] - mean; s += d * d; }
    """
                + _BLOCK_SUM
                + """
    if (!threadIdx.x) { out[2 * blockIdx.x] = mean; out[2 * blockIdx.x + 1] = s / N; }
    """,
            ),
            Code(
                "M",
                "1024",
                """
    const float* row = x + blockIdx.x * N; float s = 0, q = 0, mean, all;
    for (int j = threadIdx.x; j < N; j += 1024) { float v = row[j]; s += v; q += v * v; }
    {
    """
                + _BLOCK_SUM
                + " mean = s / N; __syncthreads(); } s = q; {"
                + _BLOCK_SUM
                + """
    all = s;
}
if (!threadIdx.x) { out[2 * blockIdx.x] = mean;
    out[2 * blockIdx.x + 1] = all / N - mean * mean;
}
    """,
            ),
        ),
    ),
    pair(
        "reading twice",
        "sum, then sum of cubes of two long arrays",
        "x:M,N y:M,N out:M",
        "M=512 N=131072",
        (
            Code(
                "M",
                "512",
                """
    const float *p = x + blockIdx.x * N, *r = y + blockIdx.x * N; float s = 0;
    for (int j = threadIdx.x; j < N; j += 512) s += p[j] - r[j];
    for (int j = threadIdx.x; j < N; j += 512) s += p[j] * p[j] * p[j] * r[j];
    """
                + _BLOCK_SUM
                + "if (!threadIdx.x) out[blockIdx.x] = s;",
            ),
            Code(
                "M",
                "512",
                """
    const float *p = x + blockIdx.x * N, *r = y + blockIdx.x * N; float s = 0;
    for (int j = threadIdx.x; j < N; j += 512) s += p[j] - r[j] + p[j] * p[j] * p[j] * r[j];
    """
                + _BLOCK_SUM
                + "if (!threadIdx.x) out[blockIdx.x] = s;",
            ),
        ),
    ),
)

_REUSE = (
    pair(
        "matrix product",
        "naive product with threads down the columns",
        _PRODUCT,
        "M=1024 N=1024 K=1024",
        (_UNCOALESCED_PRODUCT, tile_product(32)),
    ),
    pair(
        "matrix product",
        "naive product against sums in registers",
        _PRODUCT,
        "M=2048 N=2048 K=2048",
        (Code("N / 32, M / 8", "32, 8", _NAIVE_PRODUCT), register_product(4)),
    ),
    pair(
        "matrix product",
        "shared tile of 16 against sums in registers",
        _PRODUCT,
        "M=4096 N=2048 K=1024",
        (tile_product(16), register_product(8)),
    ),
    pair(
        "matrix product",
        "half precision without tensor cores",
        "a:M,K/2:int32 b:K,N/2:int32 out:M,N",
        "M=2048 N=2048 K=2048",
        (
            Code(
                "N / 32, M / 8",
                "32, 8",
                _NAIVE_PRODUCT.replace(
                    "a[i * K + k] * b[k * N + j]",
                    "float(((const half*)a)[i * K + k]) * float(((const half*)b)[k * N + j])",
                ),
            ),
            Code(
                "N / 32, M / 64",
                "32, 4",
                """
    using namespace nvcuda::wmma; const half *p = (const half*)a, *r = (const half*)b;
    int i = blockIdx.y * 64 + threadIdx.y * 16, j = blockIdx.x * 32;
    fragment<accumulator, 16, 16, 16, float> s, t; fill_fragment(s, 0.0f);
    fill_fragment(t, 0.0f); for (int k = 0; k < K; k += 16) {
        fragment<matrix_a, 16, 16, 16, half, row_major> f;
        fragment<matrix_b, 16, 16, 16, half, row_major> g, h;
        load_matrix_sync(f, p + i * K + k, K); load_matrix_sync(g, r + k * N + j, N);
        load_matrix_sync(h, r + k * N + j + 16, N); mma_sync(s, f, g, s);
        mma_sync(t, f, h, t);
    }
    store_matrix_sync(out + i * N + j, s, N, mem_row_major);
    store_matrix_sync(out + i * N + j + 16, t, N, mem_row_major);
    """,
            ),
        ),
    ),
    pair(
        "data reuse",
        "box filter of 17 x 17 by all its points",
        "x:M+16,N+16 out:M,N",
        "M=2048 N=2048",
        (
            Code(
                "N / 32, M / 8",
                "32, 8",
                """
    int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    float s = 0;
    for (int r = 0; r < 17; r++) for (int c = 0; c < 17; c++) s += x[(i + r) * (N + 16) + j + c];
    out[i * N + j] = s;
    """,
            ),
            Code(
                "N / 32, M / 32",
                "32, 8",
                """
    __shared__ float tile[48][49], sums[48][33]; int t = threadIdx.x, y = threadIdx.y;
    for (int r = y; r < 48; r += 8) for (int c = t; c < 48; c += 32)
        tile[r][c] = x[(blockIdx.y * 32 + r) * (N + 16) + blockIdx.x * 32 + c];
    __syncthreads();
    for (int r = y; r < 48; r += 8) { float s = 0;
        for (int c = 0; c < 17; c++) s += tile[r][t + c]; sums[r][t] = s;
    }
    __syncthreads();
    for (int r = y; r < 32; r += 8) { float s = 0;
        for (int c = 0; c < 17; c++) s += sums[r + c][t];
        out[(blockIdx.y * 32 + r) * N + blockIdx.x * 32 + t] = s;
    }
    """,
            ),
        ),
    ),
    pair(
        "data reuse",
        "128 taps, one output a thread against eight",
        "x:N+128 w:128 out:N",
        "N=4194304",
        (
            Code(
                "N / 256",
                "256",
                f"""
    {_I} float s = 0; for (int k = 0; k < 128; k++) s += w[k] * x[i + k]; out[i] = s;
    """,
            ),
            Code(
                "N / 2048",
                "256",
                """__shared__ float tile[2048 + 128 + 68], taps[128];
    int t = threadIdx.x, i = blockIdx.x * 2048;
    for (int e = t; e < 2176; e += 256) tile[e + e / 32] = x[i + e];
    if (t < 128) taps[t] = w[t];
    __syncthreads();
    float s[8] = {}, v[8];
    #pragma unroll
    for (int q = 0; q < 8; q++) v[q] = tile[t * 8 + q + (t * 8 + q) / 32];
    #pragma unroll 8
    for (int k = 0; k < 128; k++) {
        float c = taps[k];
        #pragma unroll
        for (int q = 0; q < 8; q++) s[q] += c * v[q];
        #pragma unroll
        for (int q = 0; q < 7; q++) v[q] = v[q + 1];
        int e = t * 8 + k + 8; v[7] = tile[e + e / 32];
    }
    __syncthreads();
    #pragma unroll
    for (int q = 0; q < 8; q++) tile[t * 8 + q + (t * 8 + q) / 32] = s[q];
    __syncthreads();
    for (int e = t; e < 2048; e += 256) out[i + e] = tile[e + e / 32];""",
            ),
        ),
    ),
    pair(
        "lookup table",
        "random places of a float table in global memory",
        "t:4096 out:N",
        "N=1048576",
        both(
            "N / 256",
            "256",
            _I
            + """
    @@ unsigned h = i; float s = 0; for (int k = 0; k < 256; k++) {
        h = h * 1664525u + 1013904223u; s += p[h >> 20];
    }
    out[i] = s;
    """,
            "const float* p = t;",
            """
    __shared__ float p[4096];
    for (int e = threadIdx.x; e < 4096; e += 256) p[e] = t[e]; __syncthreads();
    """,
        ),
    ),
    pair(
        "lookup table",
        "substitution of bytes by a table in global memory",
        "t:1024:int32 x:N:int32 out:N:int32",
        "N=1048576",
        both(
            "N / 128",
            "128",
            _I
            + """
    @@ unsigned v = x[i];
    for (int k = 0; k < 32; k++)
        v = p[v & 255] ^ p[256 + (v >> 8 & 255)] ^ p[512 + (v >> 16 & 255)] ^ p[768 + (v >> 24)];
    out[i] = v;
    """,
            "const int* p = t;",
            """
    __shared__ int p[1024];
    for (int e = threadIdx.x; e < 1024; e += 128) p[e] = t[e]; __syncthreads();
    """,
        ),
    ),
)

_SHARED = (
    pair(
        "bank conflicts",
        "product with a transposed tile",
        _PRODUCT,
        "M=1024 N=1024 K=512",
        (
            tile_product(32, TERM="as[y][q] * bs[x][q]", PLACE="bs[x][y]"),
            tile_product(32, TERM="as[y][q] * bs[x][q]", PLACE="bs[x][y]", PAD="+ 1"),
        ),
    ),
    pair(
        "bank conflicts",
        "recurrence along rows of 32",
        "x:N out:N",
        "N=16777216",
        both(
            "N / 4096",
            "128",
            """
    const int S = @@; __shared__ float s[128 * S];
    int t = threadIdx.x, i = blockIdx.x * 4096;
    for (int e = t; e < 4096; e += 128) s[e / 32 * S + e % 32] = x[i + e];
    __syncthreads(); float v = 0;
    for (int k = 0; k < 32; k++) s[t * S + k] = v = 0.5f * v + s[t * S + k];
    for (int k = 31; k >= 0; k--) s[t * S + k] = v = 0.5f * v + s[t * S + k];
    __syncthreads();
    for (int e = t; e < 4096; e += 128) out[i + e] = s[e / 32 * S + e % 32];
    """,
            "32",
            "33",
        ),
    ),
    pair(
        "bank conflicts",
        "histogram of each thread in its own 32 words",
        "x:N:int32 out:N/2:int32",
        "N=4194304",
        both(
            "N / 8192",
            "128",
            """
    #define AT(bin) (@@)
    __shared__ int s[4096]; int t = threadIdx.x;
    for (int k = 0; k < 32; k++) s[k * 128 + t] = 0;
    __syncthreads();
    for (int k = 0; k < 64; k++) {
        unsigned v = x[blockIdx.x * 8192 + k * 128 + t];
        for (int q = 0; q < 6; q++, v >>= 5) s[AT(v & 31)]++;
    }
    __syncthreads();
    for (int k = 0; k < 32; k++) out[blockIdx.x * 4096 + k * 128 + t] = s[AT(k)];
    """,
            "t * 32 + (bin)",
            "(bin) * 128 + t",
        ),
    ),
    pair(
        "barriers",
        "distances to points that come one by one",
        "x:N y:K out:N",
        "N=262144 K=4096",
        (
            Code(
                "N / 256",
                "256",
                f"""
    {_I} __shared__ float p; float v = x[i], s = 0; for (int k = 0; k < K; k++) {{
        if (!threadIdx.x) p = y[k]; __syncthreads(); s += fabsf(v - p); __syncthreads();
    }}
    out[i] = s;
    """,
            ),
            Code(
                "N / 256",
                "256",
                f"""
    {_I} __shared__ float p[256]; float v = x[i], s = 0;
    for (int k = 0; k < K; k += 256) {{ p[threadIdx.x] = y[k + threadIdx.x];
        __syncthreads();
        for (int q = 0; q < 256; q++) s += fabsf(v - p[q]); __syncthreads();
    }}
    out[i] = s;
    """,
            ),
        ),
    ),
    pair(
        "barriers",
        "diffusion of 32 cells by shared memory against shuffles",
        "x:N out:N",
        "N=4194304",
        (
            Code(
                "N / 256",
                "256",
                _I
                + """
    __shared__ float s[256];
    int t = threadIdx.x, f = t & ~31, l = f + ((t + 31) & 31), r = f + ((t + 1) & 31);
    float v = x[i]; for (int k = 0; k < 128; k++) { s[t] = v; __syncthreads();
        v = 0.5f * v + 0.25f * (s[l] + s[r]); __syncthreads();
    }
    out[i] = v;
    """,
            ),
            Code(
                "N / 256",
                "256",
                _I
                + """
    float v = x[i]; int l = threadIdx.x + 31 & 31, r = threadIdx.x + 1 & 31;
    for (int k = 0; k < 128; k++)
        v = 0.5f * v + 0.25f * (__shfl_sync(~0u, v, l) + __shfl_sync(~0u, v, r));
    out[i] = v;
    """,
            ),
        ),
    ),
    pair(
        "reduction",
        "tree of every second thread against halves",
        "x:N out:N/256",
        "N=16777216",
        both(
            "N / 256",
            "256",
            _I
            + """
    __shared__ float s[256]; int t = threadIdx.x; s[t] = x[i]; __syncthreads();
    @@ if (!t) out[blockIdx.x] = s[0];
    """,
            "\n#pragma unroll 1\n"
            """
    for (int d = 1; d < 256; d *= 2) { if (t % (2 * d) == 0) s[t] += s[t + d];
        __syncthreads();
    }
    """,
            "\n#pragma unroll 1\n"
            """
    for (int d = 128; d; d /= 2) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
    """,
        ),
    ),
    pair(
        "reduction",
        "sum of a block by its first thread",
        "x:N:float64 out:N/1024:float64",
        "N=8388608",
        both(
            "N / 1024",
            "1024",
            _I
            + """
    __shared__ double s[1024]; int t = threadIdx.x; s[t] = x[i]; __syncthreads();
    @@ if (!t) out[blockIdx.x] = s[0];
    """,
            """
    if (!t) { double v = 0; for (int k = 0; k < 1024; k++) v += s[k]; s[0] = v; }
    """,
            """
    for (int d = 512; d; d /= 2) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
    """,
        ),
    ),
    pair(
        "atomics",
        "sum of floats at one address",
        "x:N out:1",
        "N=16777216",
        both(
            "N / 256",
            "256",
            _I + "float s = x[i]; @@",
            "atomicAdd(out, s);",
            _BLOCK_SUM + "if (!threadIdx.x) atomicAdd(out, s);",
        ),
    ),
    pair(
        "atomics",
        "histogram of 64 bins in global memory",
        "x:N:int32 out:64:int32",
        "N=16777216",
        (
            Code(
                "N / 4096",
                "256",
                """
    int i = blockIdx.x * 4096 + threadIdx.x;
    for (int k = 0; k < 16; k++) atomicAdd(&out[x[i + k * 256] & 63], 1);
    """,
            ),
            Code(
                "N / 4096",
                "256",
                """
    __shared__ int s[64]; int i = blockIdx.x * 4096 + threadIdx.x;
    if (threadIdx.x < 64) s[threadIdx.x] = 0; __syncthreads();
    for (int k = 0; k < 16; k++) atomicAdd(&s[x[i + k * 256] & 63], 1); __syncthreads();
    if (threadIdx.x < 64) atomicAdd(&out[threadIdx.x], s[threadIdx.x]);
    """,
            ),
        ),
    ),
    pair(
        "atomics",
        "sum of a block at one shared address",
        "x:N out:N/512",
        "N=8388608",
        both(
            "N / 512",
            "512",
            _I + "float s = x[i]; @@ if (!threadIdx.x) out[blockIdx.x] = s;",
            """
    __shared__ float all;
    if (!threadIdx.x) all = 0; __syncthreads(); atomicAdd(&all, s); __syncthreads();
    s = all;
    """,
            _BLOCK_SUM,
        ),
    ),
)

_THREADS = (
    pair(
        "too few threads",
        "axpy by one block",
        "x:N y:N out:N",
        "N=4194304",
        (
            Code(
                "1",
                "1024",
                """
    for (int i = threadIdx.x; i < N; i += 1024) out[i] = 2.5f * x[i] + y[i];
    """,
            ),
            Code("N / 256", "256", f"{_I} out[i] = 2.5f * x[i] + y[i];"),
        ),
    ),
    pair(
        "too few threads",
        "one thread a block",
        "x:N out:N",
        "N=1048576",
        (
            Code("N", "1", iterated("v = 0.9f * v + 0.1f;", steps=64)),
            Code("N / 256", "256", iterated("v = 0.9f * v + 0.1f;", steps=64)),
        ),
    ),
    pair(
        "too few threads",
        "eight threads a block",
        "x:N:int32 out:N:int32",
        "N=1048576",
        (
            Code(
                "N / 8",
                "8",
                iterated("v ^= v << 13; v ^= v >> 17; v ^= v << 5;").replace("float", "unsigned"),
            ),
            Code(
                "N / 128",
                "128",
                iterated("v ^= v << 13; v ^= v >> 17; v ^= v << 5;").replace("float", "unsigned"),
            ),
        ),
    ),
    pair(
        "too few threads",
        "norms of 64 long rows by a warp a row",
        "x:M,N out:M",
        "M=64 N=65536",
        (
            Code(
                "M",
                "32",
                f"""
    float s = 0;
    for (int j = threadIdx.x; j < N; j += 32) {{ float v = x[blockIdx.x * N + j];
        s += v * v;
    }}
    {_WARP_SUM} if (!threadIdx.x) out[blockIdx.x] = sqrtf(s);
    """,
            ),
            Code(
                "M",
                "1024",
                f"""
    float s = 0;
    for (int j = threadIdx.x; j < N; j += 1024) {{ float v = x[blockIdx.x * N + j];
        s += v * v;
    }}
    {_BLOCK_SUM} if (!threadIdx.x) out[blockIdx.x] = sqrtf(s);
    """,
            ),
        ),
    ),
    pair(
        "too few threads",
        "arithmetic on eight blocks",
        "x:N out:N",
        "N=1048576",
        (
            Code(
                "8",
                "1024",
                """
    for (int i = blockIdx.x * 1024 + threadIdx.x; i < N; i += 8192) { float v = x[i];
        for (int k = 0; k < 128; k++) v = v * v - 0.7f;
        out[i] = v;
    }
    """,
            ),
            Code("N / 1024", "1024", iterated("v = v * v - 0.7f;", steps=128)),
        ),
    ),
    pair(
        "low occupancy",
        "copy through shared memory of 48 KB a block",
        "x:N out:N",
        "N=16777216",
        both(
            "N / 64",
            "64",
            _I
            + """
    __shared__ float s[@@]; int t = threadIdx.x; s[t] = x[i]; __syncthreads();
    out[i] = s[63 - t];
    """,
            "12288",
            "64",
        ),
    ),
    pair(
        "low occupancy",
        "dependent arithmetic beside 48 KB a warp",
        "x:N out:N",
        "N=1048576",
        both(
            "N / 32",
            "32",
            _I
            + """
    __shared__ float s[@@]; int t = threadIdx.x; s[t] = x[i]; __syncwarp();
    float v = s[31 - t]; for (int k = 0; k < 512; k++) v = v * v - 0.7f; out[i] = v;
    """,
            "12288",
            "32",
        ),
    ),
    pair(
        "latency",
        "polynomial of 1024 terms as one chain",
        "x:N c:1024 out:N",
        "N=5120",
        (
            Code(
                "N / 64",
                "64",
                f"""
    {_I} float v = 0.2f * x[i], s = 0; for (int k = 1023; k >= 0; k--) s = s * v + c[k];
    out[i] = s;
    """,
            ),
            Code(
                "N / 64",
                "64",
                _I
                + """
    float v = 0.2f * x[i], w = v * v * v * v, s = 0, t = 0, u = 0, q = 0;
    for (int k = 1020; k >= 0; k -= 4) { s = s * w + c[k]; t = t * w + c[k + 1];
        u = u * w + c[k + 2]; q = q * w + c[k + 3];
    }
    out[i] = s + v * (t + v * (u + v * q));
    """,
            ),
        ),
    ),
    pair(
        "latency",
        "one load in flight against eight",
        "x:N out:8192",
        "N=8388608",
        both(
            "128",
            "64",
            _I
            + """float s = 0;
    #pragma unroll 1
    for (int j = i; j < N; j += 8192 * @@
    out[i] = s;""",
            "1) s += x[j];",
            "8) {\n float v[8];\n"
            """
    #pragma unroll\nfor (int q = 0; q < 8; q++) v[q] = x[j + q * 8192];\n
    """
            "#pragma unroll\nfor (int q = 0; q < 8; q++) s += v[q];\n}",
        ),
    ),
    pair(
        "divergence",
        "odd and even elements take long ways of their own",
        "x:N out:N",
        "N=1048576",
        both(
            "N / 256",
            "256",
            """
    int t = threadIdx.x, i = blockIdx.x * 256 + @@; float v = x[i];
    if (i % 2) for (int k = 0; k < 256; k++) v = v * v - 0.7f;
    else for (int k = 0; k < 256; k++) v = fabsf(v * 0.99f - 0.1f); out[i] = v;
    """,
            "t",
            "t % 32 * 2 + t / 32 % 2 + t / 64 * 64",
        ),
    ),
    pair(
        "divergence",
        "four integer mixers by the last two bits",
        "x:N:int32 out:N:int32",
        "N=2097152",
        both(
            "N / 128",
            "128",
            """
    int t = threadIdx.x, i = blockIdx.x * 128 + @@; unsigned v = x[i]; switch (i & 3) {
        case 0: for (int k = 0; k < 128; k++) v = v * 1664525u + 1013904223u; break;
        case 1: for (int k = 0; k < 128; k++) { v ^= v << 13; v ^= v >> 17; }
        break;
        case 2: for (int k = 0; k < 128; k++) v = (v << 7 | v >> 25) + 0x9e3779b9u;
        break; default: for (int k = 0; k < 128; k++) v = (v ^ v >> 15) * 0x2c1b3c6du;
    }
    out[i] = v;
    """,
            "t",
            "t % 32 * 4 + t / 32",
        ),
    ),
    pair(
        "divergence",
        "loops of 32 lengths in a warp",
        "x:N out:N",
        "N=1048576",
        both(
            "N / 1024",
            "1024",
            """
    int t = threadIdx.x, i = blockIdx.x * 1024 + @@, n = 32 * (i % 32 + 1);
    float v = x[i]; for (int k = 0; k < n; k++) v = v * v - 0.7f; out[i] = v;
    """,
            "t",
            "t % 32 * 32 + t / 32",
        ),
    ),
    pair(
        "divergence",
        "one lane of a warp does the work of all",
        "x:N out:N",
        "N=1048576",
        (
            Code(
                "N / 256",
                "256",
                f"""
    {_I} if (i % 32 == 0) for (int j = i; j < i + 32; j++) {{ float v = x[j];
        for (int k = 0; k < 64; k++) v = v * v - 0.7f;
        out[j] = v;
    }}
    """,
            ),
            Code("N / 256", "256", iterated("v = v * v - 0.7f;", steps=64)),
        ),
    ),
    pair(
        "registers",
        "product whose sums spill",
        _PRODUCT,
        "M=2048 N=2048 K=2048",
        (
            register_product(8, "__launch_bounds__(256, 6) "),
            register_product(8, "__launch_bounds__(256) "),
        ),
    ),
    pair(
        "registers",
        "sorting 32 values in local memory",
        "x:N out:N",
        "N=8388608",
        both(
            "N / 4096",
            "128",
            """int i = blockIdx.x * 4096 + threadIdx.x; float v[32];
    for (int k = 0; k < 32; k++) v[k] = x[i + k * 128];
    #pragma unroll @@
    for (int p = 0; p < 32; p++)
        #pragma unroll @@
        for (int k = p % 2; k < 31; k += 2) {
            float a = fminf(v[k], v[k + 1]), b = fmaxf(v[k], v[k + 1]); v[k] = a; v[k + 1] = b;
        }
    for (int k = 0; k < 32; k++) out[i + k * 128] = v[k];""",
            "1",
            "32",
        ),
    ),
)

_BODIES = """
    REAL px = x[i * 3], py = x[i * 3 + 1], pz = x[i * 3 + 2], fx = 0, fy = 0, fz = 0;
    for (int j = 0; j < N; j++) {
        REAL dx = x[j * 3] - px, dy = x[j * 3 + 1] - py, dz = x[j * 3 + 2] - pz;
        REAL r = ROOT(dx * dx + dy * dy + dz * dz + (REAL)1e-3), q = r * r * r;
        fx += dx * q; fy += dy * q; fz += dz * q;
    }
    out[i * 3] = fx; out[i * 3 + 1] = fy; out[i * 3 + 2] = fz;
    """
_WINDOW = (
    _I
    + """
    float s = 0;
    for (int k = 0; k < 65; k++) { float d = (k - 32) * 0.1f; s += @@ * x[i + k]; }
    out[i] = s;
    """
)

_ARITHMETIC = (
    pair(
        "double precision",
        "constants without f",
        "x:N out:N",
        "N=1048576",
        both(_EACH, "256", iterated("v = v * @@;"), "0.99 + 0.01", "0.99f + 0.01f"),
    ),
    pair(
        "double precision",
        "exponentials of doubles",
        "x:N out:N",
        "N=2097152",
        both(_EACH, "256", iterated("v = @@;", steps=16), "exp(-(double)v)", "expf(-v)"),
    ),
    pair(
        "double precision",
        "forces between bodies in double",
        "x:N,3 out:N,3",
        "N=16384",
        (
            Code("N / 128", "128", _I + _BODIES.replace("REAL", "double").replace("ROOT", "rsqrt")),
            Code("N / 128", "128", _I + _BODIES.replace("REAL", "float").replace("ROOT", "rsqrtf")),
        ),
    ),
    pair(
        "double precision",
        "product with sums in double",
        _PRODUCT,
        "M=1024 N=512 K=2048",
        (
            tile_product(16, SUM="double s = 0;", TERM="(double)as[y][q] * bs[q][x]"),
            tile_product(16),
        ),
    ),
    pair(
        "integer division",
        "places in a ring by modulo",
        "x:R out:N",
        "N=1048576 R=1000",
        both(
            _EACH,
            "256",
            _I
            + """
    float s = 0; int p = i % R;
    for (int k = 0; k < 512; k++) { s += x[p]; @@ }
    out[i] = s;
    """,
            "p = (p + 7) % R;",
            "p += 7; if (p >= R) p -= R;",
        ),
    ),
    pair(
        "integer division",
        "64-bit modulo of a power of two",
        "x:N:int64 out:N:int64",
        "N=1048576 P=4096",
        both(
            _EACH,
            "256",
            _I
            + """
    unsigned long v = x[i], s = 0; for (int k = 0; k < 64; k++) {
        v = v * 6364136223846793005ul + 1442695040888963407ul; s += @@;
    }
    out[i] = s;
    """,
            "v % (unsigned long)P",
            "v & (unsigned long)(P - 1)",
        ),
    ),
    pair(
        "integer division",
        "row and column of a window by division",
        "x:M+15,N+15 out:M,N",
        "M=1024 N=1024 W=16",
        both(
            "N / 32, M / 8",
            "32, 8",
            """
    int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    float s = 0; @@ out[i * N + j] = s;
    """,
            """
    for (int k = 0; k < W * W; k++) s += x[(i + k / W) * (N + 15) + j + k % W];
    """,
            """
    for (int r = 0; r < W; r++) for (int c = 0; c < W; c++) s += x[(i + r) * (N + 15) + j + c];
    """,
        ),
    ),
    pair(
        "float functions",
        "division by the same number again and again",
        "x:N d:1 out:N",
        "N=2097152",
        both(
            _EACH,
            "256",
            iterated("v = @@ + 0.5f;", "float c = d[0], r = 1 / c;", 128),
            "v / c",
            "v * r",
        ),
    ),
    pair(
        "float functions",
        "powf with a whole exponent",
        "x:N out:N",
        "N=4194304 E=3",
        both(
            _EACH,
            "256",
            iterated("v = @@ * 0.5f + 0.1f;", "v = fabsf(v);", 16),
            "powf(v, (float)E)",
            "(v * v * v)",
        ),
    ),
    pair(
        "float functions",
        "sinf of small angles against __sinf",
        "x:N out:N",
        "N=4194304",
        both(_EACH, "256", iterated("v = @@(v) + 0.3f;", steps=32), "sinf", "__sinf"),
    ),
    pair(
        "float functions",
        "one over sqrtf against rsqrtf",
        "x:N out:N",
        "N=4194304",
        both(_EACH, "256", iterated("v = @@(v * v + 0.1f);", steps=64), "1.0f / sqrtf", "rsqrtf"),
    ),
    pair(
        "float functions",
        "tanhf against the instruction",
        "x:N out:N",
        "N=4194304",
        both(
            _EACH,
            "256",
            iterated("@@ v = 1.5f * w + 0.2f;", "float w;", 32),
            "w = tanhf(v);",
            'asm("tanh.approx.f32 %0, %1;" : "=f"(w) : "f"(v));',
        ),
    ),
    pair(
        "recomputing",
        "sine of an element in the inner loop of a product",
        _PRODUCT,
        "M=512 N=1024 K=1024",
        (
            tile_product(16, TERM="sinf(as[y][q]) * bs[q][x]"),
            tile_product(16, LEFT="sinf(a[i * K + k + x])"),
        ),
    ),
    pair(
        "recomputing",
        "weights of a window for every output",
        "x:N+64 c:1 out:N",
        "N=2097152",
        (
            Code(_EACH, "256", _WINDOW.replace("@@", "expf(-d * d * c[0])")),
            Code(
                _EACH,
                "256",
                """
    __shared__ float w[65];
    if (threadIdx.x < 65) { float d = ((int)threadIdx.x - 32) * 0.1f;
        w[threadIdx.x] = expf(-d * d * c[0]);
    }
    __syncthreads();
    """
                + _WINDOW.replace("float d = (k - 32) * 0.1f; ", "").replace("@@", "w[k]"),
            ),
        ),
    ),
    pair(
        "recomputing",
        "powers of a polynomial from the start each time",
        "x:N c:48 out:N",
        "N=1048576",
        both(
            _EACH,
            "256",
            _I + "float v = x[i], s = 0; @@ out[i] = s;",
            """
    for (int k = 0; k < 48; k++) { float p = 1; for (int q = 0; q < k; q++) p *= v;
        s += c[k] * p;
    }
    """,
            "for (int k = 47; k >= 0; k--) s = s * v + c[k];",
        ),
    ),
    pair(
        "recomputing",
        "sums of all beginnings of a row",
        "x:M,512 out:M,512",
        "M=8192",
        (
            Code(
                "M",
                "512",
                """
    const float* row = x + blockIdx.x * 512; float s = 0;
    for (int j = 0; j <= threadIdx.x; j++) s += row[j];
    out[blockIdx.x * 512 + threadIdx.x] = s;
    """,
            ),
            Code(
                "M",
                "512",
                _I
                + """
    __shared__ float parts[16]; int t = threadIdx.x, lane = t % 32; float s = x[i], v;
    for (int d = 1; d < 32; d *= 2) { v = __shfl_up_sync(~0u, s, d);
        if (lane >= d) s += v;
    }
    if (lane == 31) parts[t / 32] = s; __syncthreads();
    for (int k = 0; k < t / 32; k++) s += parts[k];
    out[i] = s;
    """,
            ),
        ),
    ),
)

PAIRS = (*_ACCESS, *_REUSE, *_SHARED, *_THREADS, *_ARITHMETIC)
