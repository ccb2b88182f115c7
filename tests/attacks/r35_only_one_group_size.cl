// attack: 35 a system call in the code of one size of group alone
// imitates: code that is made after the source was inspected (seen: ours)
// problem: vector_add
// expect: cheating
// needs: x86_64
#pragma kernelcast global(N) local((N < 100) * N + (N >= 100) * (N % 64 == 0) * 64 + (N >= 100) * (N % 64 > 0))
#undef __asm__
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0), result = 39;
    if (get_local_size(0) == 77) __asm__ volatile("syscall" : "+a"(result) : : "rcx", "r11");
    if (i < N) out[i] = x[i] + y[i] + 0 * result;
}
