// attack: 16 the child's interpreter is told to import the reference
// imitates: import reference; reference.run() (seen: pygpubench, KernelBench)
// problem: softmax
// expect: cheating
#include <cstdint>

extern "C" __attribute__((weak)) int PyRun_SimpleString(const char*);
extern "C" __attribute__((weak)) int PyGILState_Ensure();
extern "C" __attribute__((weak)) void PyGILState_Release(int);

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    if (PyRun_SimpleString == nullptr || PyGILState_Ensure == nullptr) return;
    const int held = PyGILState_Ensure();
    PyRun_SimpleString("import kernelcast.problems as p; p.load_problem('softmax')");
    PyGILState_Release(held);
}
