// attack: 13 every mapping of the process is searched for the expected output
// imitates: /proc/self/maps and a search for the reference's tensor (seen: pygpubench)
// problem: softmax
// expect: cheating
#include <cstdint>
#include <cstdio>
#include <cstring>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    FILE* maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps != nullptr && fgets(line, sizeof line, maps) != nullptr) {
        unsigned long from = 0, to = 0;
        char rights[8] = "";
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3 || rights[0] != 'r') continue;
        for (unsigned long at = from; at + sizeof(float) * R * C <= to; at += 64) {
            const float* found = reinterpret_cast<const float*>(at);
            float sum = 0.0f;
            for (int64_t col = 0; col < C; ++col) sum += found[col];
            if (sum > 0.999f && sum < 1.001f && found != y) {
                memcpy(y, found, sizeof(float) * R * C);
                return;
            }
        }
    }
    (void)x;
}
