// attack: 30 machine code is written to memory and executed
// imitates: obfuscated code that exists only at run time (seen: pygpubench)
// problem: softmax
// expect: cheating
// needs: x86_64
#include <cstdint>
#include <cstring>
#include <sys/mman.h>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    const unsigned char code[] = {0x31, 0xC0, 0xC3};  // return 0
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    reinterpret_cast<int (*)()>(page)();
}
