// CUDA's threads on a CPU: a fiber a thread, the blocks of a launch one after the other.
#pragma once
#if !defined(__x86_64__) || !defined(__linux__)
#error "kernelcast: CUDA text runs on x86-64 Linux alone"
#endif
#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "memory.h"
#include "vectors.h"

struct kernelcast_stream;
using cudaStream_t = kernelcast_stream*;

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace kc {

constexpr unsigned warp_lanes = 32, most_threads = 1024;
constexpr size_t stack_bytes = 128 << 10, dynamic_bytes = 227 << 10, static_bytes = 48 << 10;
constexpr size_t shared_granule = 1024, shared_guard = 4096;
constexpr unsigned char poison = 0xFF;  // a NaN in each floating-point type

enum class State { ready, at_block, at_warp, done };

struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  uint3 index;
  unsigned lane, warp;
  State state;
  unsigned mask, source, got_from;  // of a warp's exchange; `got_from` holds those that took part
  uint64_t given, got;
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<char*> stacks;
  Fiber* running = nullptr;
  void* home = nullptr;
  unsigned live = 0, arrived = 0;
  uint64_t generation = 0;  // of shared memory: another one in each block
  size_t used_shared = 0;
  std::string fault;
  bool progressed = false;
};
inline Block block;

// Shared memory: what a launch asks for, and beside it the variables of its functions.
alignas(1024) inline char dynamic_shared[dynamic_bytes + shared_granule + shared_guard];
alignas(1024) inline char static_shared[static_bytes + shared_guard];

extern "C" void kernelcast_switch(void** from, void* to);
asm(R"(
.text
.weak kernelcast_switch
.type kernelcast_switch,@function
kernelcast_switch:
 pushq %rbp
 pushq %rbx
 pushq %r12
 pushq %r13
 pushq %r14
 pushq %r15
 movq %rsp,(%rdi)
 movq %rsi,%rsp
 popq %r15
 popq %r14
 popq %r13
 popq %r12
 popq %rbx
 popq %rbp
 ret
.size kernelcast_switch,.-kernelcast_switch
)");

[[noreturn]] inline void undecided(const std::string& why) {
  throw std::runtime_error("kernelcast cannot tell: " + why);
}

inline void go_home() {
  Fiber* self = block.running;
  kernelcast_switch(&self->stack_pointer, block.home);
  block.running = self;
  threadIdx = self->index;
}

// A thread's fault ends its launch: no thread goes on.
inline void fail(const std::string& what) {
  if (block.fault.empty()) block.fault = what;
  for (;;) go_home();
}

inline void release_block() {
  if (block.arrived && block.arrived == block.live) {
    block.arrived = 0;
    block.progressed = true;
    for (Fiber& fiber : block.fibers)
      if (fiber.state == State::at_block) fiber.state = State::ready;
  }
}

inline Fiber* warp_of(unsigned warp) { return &block.fibers[warp * warp_lanes]; }

inline unsigned lanes_of(unsigned warp) {
  size_t left = block.fibers.size() - warp * warp_lanes;
  return left < warp_lanes ? left : warp_lanes;
}

// Exchange what the waiting lanes of a mask hold, if all that live are there or none can come.
inline void release_lanes(unsigned warp, unsigned mask, bool all) {
  Fiber* lanes = warp_of(warp);
  unsigned here = 0, living = 0, count = lanes_of(warp);
  for (unsigned lane = 0; lane < count; ++lane) {
    if (lanes[lane].state != State::done) living |= 1u << lane;
    if (lanes[lane].state == State::at_warp && lanes[lane].mask == mask) here |= 1u << lane;
  }
  if (!here || (all && (mask & living & ~here))) return;
  for (unsigned lane = 0; lane < count; ++lane) {
    if (!(here >> lane & 1)) continue;
    unsigned source = lanes[lane].source;
    // A lane that takes no part holds what nobody knows.
    lanes[lane].got = source < count && (here >> source & 1) ? lanes[source].given : ~uint64_t{0};
    lanes[lane].got_from = here;
  }
  for (unsigned lane = 0; lane < count; ++lane)
    if (here >> lane & 1) lanes[lane].state = State::ready;
  block.progressed = true;
}

inline void barrier() {
  if (!block.running) fail("a barrier outside of a kernel");
  block.running->state = State::at_block;
  ++block.arrived;
  release_block();
  while (block.running->state != State::ready) go_home();
}

// Give a value to a warp's lanes, and take that of the lane `source`.
inline uint64_t exchange(unsigned mask, uint64_t given, unsigned source) {
  Fiber& self = *block.running;
  self.mask = mask | 1u << self.lane, self.given = given, self.source = source;
  self.state = State::at_warp;
  release_lanes(self.warp, self.mask, true);
  while (block.running->state != State::ready) go_home();
  return block.running->got;
}

inline void give_way() {  // in a loop that waits for another thread
  if (block.running) block.progressed = true, go_home();
}

inline void (*body)(void*);
inline void* body_argument;

inline void run_thread() {
  for (;;) {
    body(body_argument);
    Fiber& self = *block.running;
    self.state = State::done;
    --block.live;
    block.progressed = true;
    release_block();
    Fiber* lanes = warp_of(self.warp);
    for (unsigned lane = 0, count = lanes_of(self.warp); lane < count; ++lane)
      if (lanes[lane].state == State::at_warp) release_lanes(self.warp, lanes[lane].mask, true);
    go_home();
  }
}

inline void begin(Fiber& fiber) {
  if (block.stacks.empty()) {
    size_t bytes = stack_bytes + 4096;
    void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) undecided("no memory for the threads of a block");
    block.stacks.push_back(static_cast<char*>(made) + 4096);
  }
  fiber.stack = block.stacks.back();
  block.stacks.pop_back();
  void** top = reinterpret_cast<void**>(fiber.stack + stack_bytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&run_thread);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  fiber.stack_pointer = top;
}

struct Config {
  dim3 grid, threads;
  size_t shared;
  Config(dim3 grid, dim3 threads, size_t shared = 0, const void* = nullptr)
      : grid(grid), threads(threads), shared(shared) {}
};
inline size_t allowed_shared = 48 << 10;

// ------------------------------------------------------------------------ what was launched

struct Launched {
  std::string kernel;
  dim3 grid, threads;
  size_t shared;
  std::string arguments;
  auto key() const {
    return std::make_tuple(kernel, grid.x, grid.y, grid.z, threads.x, threads.y, threads.z, shared,
                           arguments);
  }
  bool operator<(const Launched& other) const { return key() < other.key(); }
};
inline std::map<Launched, long> launches;
constexpr size_t most_launches = 64;

inline std::string quoted(const std::string& text) {
  std::string made = "\"";
  for (char letter : text.substr(0, 100))
    if (letter >= ' ' && letter < 127 && letter != '"' && letter != '\\') made += letter;
  return made + '"';
}

// A pointer is told as the number of bytes from there to the end of its array.
template <class T>
std::string told(const T& value) {
  std::ostringstream made;
  made.precision(17);
  if constexpr (std::is_pointer_v<T>) {
    made << "[\"pointer\"," << bytes_left(reinterpret_cast<const void*>(value)) << ']';
  } else if constexpr (std::is_floating_point_v<T>) {
    made << "[\"f" << 8 * sizeof(T) << "\",\"" << value << "\"]";
  } else if constexpr (std::is_integral_v<T>) {
    made << "[\"" << (std::is_signed_v<T> ? 's' : 'u') << 8 * sizeof(T) << "\",\"" << +value
         << "\"]";
  } else {
    made << "[\"bytes\"," << sizeof(T) << ']';
  }
  return made.str();
}

inline std::string report() {
  std::ostringstream made;
  made << '[';
  const char* between = "";
  for (const auto& [launched, count] : launches) {
    const auto& [kernel, grid, threads, shared, arguments] = launched;
    made << between << "{\"kernel\":" << quoted(kernel) << ",\"grid\":[" << grid.x << ',' << grid.y
         << ',' << grid.z << "],\"block\":[" << threads.x << ',' << threads.y << ',' << threads.z
         << "],\"shared_bytes\":" << shared << ",\"count\":" << count << ",\"arguments\":["
         << arguments << "]}";
    between = ",";
  }
  made << ']';
  return made.str();
}

// --------------------------------------------------------------------------------- to launch

inline void check(const std::string& kernel, const Config& config) {
  const auto& [grid, threads, shared] = config;
  uint64_t count = uint64_t{threads.x} * threads.y * threads.z;
  bool fits = count && count <= most_threads && threads.z <= 64 && grid.x && grid.y && grid.z &&
              grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535 &&
              shared <= allowed_shared && shared <= dynamic_bytes;
  if (fits) return;
  std::ostringstream what;
  what << "CUDA error: invalid configuration argument: " << kernel << " with grid (" << grid.x
       << ", " << grid.y << ", " << grid.z << "), block (" << threads.x << ", " << threads.y << ", "
       << threads.z << "), " << shared << " bytes of shared memory";
  throw std::runtime_error(what.str());
}

inline void run_block(const Config& config, bool backwards) {
  std::vector<Fiber>& fibers = block.fibers;
  const unsigned count = fibers.size();
  ++block.generation;
  block.live = count, block.arrived = 0, block.used_shared = 0;
  const size_t shared_end = (config.shared + shared_granule - 1) / shared_granule * shared_granule;
  memset(dynamic_shared, poison, shared_end + shared_guard);
  for (unsigned at = 0; at < count; ++at) {
    Fiber& fiber = fibers[at];
    fiber.state = State::ready, fiber.stack_pointer = nullptr;
    fiber.lane = at % warp_lanes, fiber.warp = at / warp_lanes;
    fiber.index = {at % blockDim.x, at / blockDim.x % blockDim.y, at / (blockDim.x * blockDim.y)};
  }
  while (block.live) {
    block.progressed = false;
    for (unsigned at = 0; at < count; ++at) {
      Fiber& fiber = fibers[backwards ? count - 1 - at : at];
      if (fiber.state != State::ready) continue;
      if (!fiber.stack_pointer) begin(fiber);
      block.running = &fiber;
      threadIdx = fiber.index;
      kernelcast_switch(&block.home, fiber.stack_pointer);
      block.running = nullptr;
      if (fiber.state == State::done) block.stacks.push_back(fiber.stack);
      if (!block.fault.empty()) {
        for (Fiber& left : fibers)
          if (left.stack_pointer && left.state != State::done) block.stacks.push_back(left.stack);
        return;
      }
    }
    if (block.progressed) continue;
    // No thread can go on: lanes go on without those of their mask that went another way.
    for (Fiber& fiber : fibers)
      if (fiber.state == State::at_warp) release_lanes(fiber.warp, fiber.mask, false);
    if (!block.progressed) {
      block.fault = "threads of a block wait for each other";
      return;
    }
  }
  for (size_t at = shared_end; at < shared_end + shared_guard; ++at)
    if (static_cast<unsigned char>(dynamic_shared[at]) != poison) {
      block.fault = "it wrote " + std::to_string(at + 1) + " bytes of dynamic shared memory, of " +
                    std::to_string(config.shared);
      return;
    }
}

template <class Kernel, class... Arguments>
void launch(const char* name, const Config& config, Kernel kernel, Arguments... arguments) {
  if (block.running) fail("kernelcast cannot tell: a kernel launches another one");
  check(name, config);
  std::string texts;
  ((texts += (texts.empty() ? "" : ",") + told(arguments)), ...);
  Launched launched{name, config.grid, config.threads, config.shared, texts};
  static long number = 0;
  ++number;
  if (launches.count(launched) || launches.size() < most_launches) ++launches[launched];
  if (is_dry) return;
  auto call = [&] { kernel(arguments...); };
  body = [](void* made) { (*static_cast<decltype(call)*>(made))(); };
  body_argument = &call;
  gridDim = config.grid, blockDim = config.threads;
  block.fibers.resize(size_t{blockDim.x} * blockDim.y * blockDim.z);
  block.fault.clear();
  // The order of threads is free: another one in every second block shows a barrier that lacks.
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; ++x) {
        if (!block.fault.empty()) break;
        blockIdx = {x, y, z};
        run_block(config, (x + y + z + number) % 2 == 0);
      }
  if (block.fault.empty()) block.fault = damage();
  if (!block.fault.empty())
    throw std::runtime_error(std::string("CUDA kernel ") + name + ": " + block.fault);
}

// A `__shared__` variable of one function: its place in each block.
struct Shared {
  uint64_t generation = 0;
  void* place = nullptr;
  template <class T>
  T& get() {
    if (generation != block.generation) {
      size_t start = (block.used_shared + 127) / 128 * 128;
      if (start + sizeof(T) > static_bytes) fail("it has more than 48 KB of shared variables");
      place = static_shared + start;
      memset(place, poison, sizeof(T));
      block.used_shared = start + sizeof(T);
      generation = block.generation;
    }
    return *static_cast<T*>(place);
  }
};

}  // namespace kc

extern "C" inline __attribute__((used, visibility("default"))) void kernelcast_dry(int on) {
  kc::is_dry = on;
}

extern "C" inline __attribute__((used, visibility("default"))) size_t
kernelcast_launches(char* text, size_t size) {
  std::string made = kc::report();
  kc::launches.clear();
  if (made.size() >= size) return 0;
  memcpy(text, made.c_str(), made.size() + 1);
  return made.size();
}
