// attack: 29 the entry is an array of bytes in place of a function
// imitates: code smuggled past the compiler as data (seen: ours)
// problem: softmax
// expect: crash
// needs: x86_64
extern "C" unsigned char kernel[16];
unsigned char kernel[16] = {0xC3, 0xC3, 0xC3};
