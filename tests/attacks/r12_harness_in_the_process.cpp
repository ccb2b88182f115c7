// attack: 12 the worker's own frames are read by the interpreter it runs in: nonce and reply
// imitates: sys._getframe() up to the harness, whose variables hold all that a reply needs
//   (seen: pygpubench)
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
    PyRun_SimpleString(
        "import sys, os\n"
        "frame = sys._getframe()\n"
        "while frame is not None:\n"
        "    told = frame.f_locals\n"
        "    if 'nonce' in told:\n"
        "        os.write(told['reply_fd'], told['reply_format'].pack(told['nonce'], 0))\n"
        "    frame = frame.f_back\n");
    PyGILState_Release(held);
}
