// A stand-in for NVIDIA's driver: memory is the host's, and a module is the path of a shared
// library whose entry computes a whole launch on the CPU.
#include <dlfcn.h>
#include <cstdint>
#include <cstdlib>
#include <cstring>

using Launch = int (*)(void** parameters, const unsigned* geometry);

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* device, int) { return *device = 0; }
int cuDeviceGetName(char* name, int size, int) {
    strncpy(name, "NVIDIA H100 80GB HBM3", size);
    return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == 75 ? 9 : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
    *context = context;
    return 0;
}
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxSynchronize() { return 0; }
int cuMemAlloc_v2(uint64_t* pointer, size_t size) {
    *pointer = reinterpret_cast<uint64_t>(malloc(size));
    return *pointer ? 0 : 2;
}
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t size) {
    memcpy(reinterpret_cast<void*>(to), from, size);
    return 0;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t size) {
    memcpy(to, reinterpret_cast<void*>(from), size);
    return 0;
}
int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t size) {
    memset(reinterpret_cast<void*>(to), value, size);
    return 0;
}
int cuModuleLoadData(void** module, const void* image) {
    *module = dlopen(static_cast<const char*>(image), RTLD_NOW);
    return *module ? 0 : 200;
}
int cuModuleUnload(void* module) { return dlclose(module); }
int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = dlsym(module, name);
    return *function ? 0 : 500;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void*, void** parameters, void**) {
    const unsigned geometry[] = {gx, gy, gz, bx, by, bz, shared};
    return reinterpret_cast<Launch>(function)(parameters, geometry);
}
}
