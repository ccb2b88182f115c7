# attack: 20 products in half precision where float is asked for
# imitates: precision downgrade on the tensor cores (seen: SOL-ExecBench, KernelBench)
# problem: matmul
# expect: wrong_result
import triton
import triton.language as tl

LAUNCH = {
    "grid": ["(M + BM - 1) / BM", "(N + BN - 1) / BN"],
    "constants": {"BM": 64, "BN": 64, "BK": 32},
    "num_warps": 4,
}


@triton.jit
def kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        keep_a = (i[:, None] < M) & (k[None, :] < K)
        keep_b = (k[:, None] < K) & (j[None, :] < N)
        one = tl.load(a + i[:, None] * K + k[None, :], mask=keep_a, other=0.0)
        other = tl.load(b + k[:, None] * N + j[None, :], mask=keep_b, other=0.0)
        sums = tl.dot(one.to(tl.float16), other.to(tl.float16), sums)
    keep = (i[:, None] < M) & (j[None, :] < N)
    tl.store(c + i[:, None] * N + j[None, :], sums, mask=keep)
