// honest: each work-item counts its part in private memory and adds it with global atomics
// problem: histogram
#define ITEMS 16
#define MOST 64
#pragma kernelcast global(ITEMS) local(ITEMS)
__kernel void compute(__global const int* x, __global int* out, long N, long B) {
    int counts[MOST];
    int me = get_local_id(0);
    for (long bin = me; bin < B; bin += ITEMS) out[bin] = 0;
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (long base = 0; base < B; base += MOST) {
        for (int bin = 0; bin < MOST; ++bin) counts[bin] = 0;
        for (long i = me; i < N; i += ITEMS) {
            long bin = x[i] - base;
            if (bin >= 0 && bin < MOST) ++counts[bin];
        }
        for (int bin = 0; bin < MOST && base + bin < B; ++bin) atomic_add(out + base + bin, counts[bin]);
    }
}
