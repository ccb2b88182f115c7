/* The native part of a process that runs a kernel on the CPU. Candidate and reference share it.

   `serve_calls` and `serve_launches` answer requests in the manner of `_worker.Service`: wait, call,
   answer. They are native so that a kernel which serves requests by itself gains nothing.

   As LD_AUDIT, the same library seals the process. The dynamic linker reports when it has mapped
   kernel.so, before it relocates it. So the filter in the file `seal` beside kernel.so is in force
   before the first instruction of the kernel's library runs: its resolvers, its constructors.

   `count_cpu` is for the parent, which loads this library too.

   The library uses neither the C library nor its headers: as LD_AUDIT it is loaded without one. */

typedef long long word;
typedef struct {
    unsigned long address;
    const char *name;
} Object; /* the first fields of struct link_map */

enum { MOST_ARGUMENTS = 32, MOST_WORDS = 64, MOST_FILTER_BYTES = 32768 };

#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, SEEK = 8, SET_POLICY = 144, LIST = 217, CLOCK = 228, OPENAT = 257 };
enum { SECCOMP = 317 };
static long ask(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("xor %%r10d, %%r10d\n\tsyscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r10", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
enum { READ = 63, WRITE = 64, SEEK = 62, SET_POLICY = 119, LIST = 61, CLOCK = 113, OPENAT = 56 };
enum { SECCOMP = 277 };
static long ask(long number, long a, long b, long c) {
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c, x3 __asm__("x3") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}
#endif

/* ------------------------------------------------------------------------------------- serving */

typedef void Kernel(word, word, word, word, word, word, word, word, word, word, word, word, word,
                    word, word, word, word, word, word, word, word, word, word, word, word, word,
                    word, word, word, word, word, word);

static void nothing(void) { __asm__ volatile("" ::: "memory"); }

/* Wait for a request of so many words; return whether there is one. */
static int heard(long fd, word *request, long words) {
    long size;
    do size = ask(READ, fd, (long)request, 8 * words);
    while (size == -4); /* interrupted */
    return size == 8 * words;
}

static void answer(long fd, word nonce, word result) {
    word reply[2] = {nonce, result};
    ask(WRITE, fd, (long)reply, sizeof reply);
}

/* Request: nonce, idle, calls, stride, an offset for each array, the dimensions. All arguments are
   passed as words; a function ignores those that it does not take. */
void serve_calls(Kernel *kernel, long arrays, long dimensions, char *memory, long request_fd,
                 long reply_fd) {
    word request[MOST_WORDS], a[MOST_ARGUMENTS] = {0};
    while (heard(request_fd, request, 4 + arrays + dimensions)) {
        Kernel *function = request[1] ? (Kernel *)nothing : kernel;
        const word *offsets = request + 4, *extents = offsets + arrays;
        char *slot = memory;
        for (word call = 0; call < request[2]; ++call, slot += request[3]) {
            for (long i = 0; i < arrays; ++i) a[i] = (word)(slot + offsets[i]);
            for (long i = 0; i < dimensions; ++i) a[arrays + i] = extents[i];
            function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11],
                     a[12], a[13], a[14], a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22],
                     a[23], a[24], a[25], a[26], a[27], a[28], a[29], a[30], a[31]);
        }
        answer(reply_fd, request[0], 0);
    }
}

/* What `serve_launches` uses of OpenCL: functions of the loader, and objects. `idle` is a kernel
   without parameters that does nothing. */
typedef struct {
    int (*set_pointer)(void *kernel, unsigned index, const void *pointer);
    int (*set_number)(void *kernel, unsigned index, unsigned long size, const void *value);
    int (*launch)(void *queue, void *kernel, unsigned rank, const unsigned long *offset,
                  const unsigned long *all, const unsigned long *group, unsigned events,
                  const void *wait_for, void *event);
    int (*finish)(void *queue);
    void *queue, *kernel, *idle;
} OpenCl;

/* Request: as above, and six extents: all work-items, and those of a group. */
void serve_launches(const OpenCl *cl, long arrays, long dimensions, const word *widths,
                    char *memory, long request_fd, long reply_fd) {
    word request[MOST_WORDS];
    while (heard(request_fd, request, 4 + arrays + dimensions + 6)) {
        const word *offsets = request + 4, *extents = offsets + arrays;
        const unsigned long *all = (const unsigned long *)(extents + dimensions);
        const unsigned long one[3] = {1, 1, 1};
        char *slot = memory;
        int error = 0;
        for (long i = 0; i < dimensions && !error; ++i)
            error = cl->set_number(cl->kernel, arrays + i, widths[i], extents + i);
        for (word call = 0; call < request[2] && !error; ++call, slot += request[3]) {
            for (long i = 0; i < arrays && !error; ++i)
                error = cl->set_pointer(cl->kernel, i, slot + offsets[i]);
            if (!error)
                error = request[1] ? cl->launch(cl->queue, cl->idle, 3, 0, one, one, 0, 0, 0)
                                   : cl->launch(cl->queue, cl->kernel, 3, 0, all, all + 3, 0, 0, 0);
        }
        int ended = cl->finish(cl->queue);
        answer(reply_fd, request[0], error ? error : ended);
    }
}

/* ------------------------------------------------------------------------------------ counting */

static long number(const char *digits) {
    long value = 0;
    while (*digits >= '0' && *digits <= '9') value = 10 * value + *digits++ - '0';
    return value;
}

/* Return the nanoseconds of a process's CPU clock, up to this moment; `tasks` is /proc/<pid>/task,
   opened. The clock of another process leaves out what a thread has computed since it
   last got a core, up to a tick. A change of its policy makes the system count that. -1 if the
   process is gone, -2 if its policy may not be changed, -3 if it has too many threads. */
word count_cpu(long tasks, long clock, long most) {
    char entries[8192];
    word now[2];
    int priority = 0;
    long size;
    if (ask(SEEK, tasks, 0, 0) < 0) return -1;
    while ((size = ask(LIST, tasks, (long)entries, sizeof entries)) > 0)
        for (long at = 0; at < size; at += *(unsigned short *)(entries + at + 16)) {
            long thread = number(entries + at + 19);
            if (!thread) continue;
            long refused = ask(SET_POLICY, thread, 3, (long)&priority); /* SCHED_BATCH */
            if (refused && refused != -3) return -2;                    /* -3: it has ended */
            if (most-- == 0) return -3;
            ask(SET_POLICY, thread, 0, (long)&priority); /* SCHED_OTHER */
        }
    return ask(CLOCK, clock, (long)now, 0) < 0 ? -1 : 1000000000 * now[0] + now[1];
}

/* ------------------------------------------------------------------------------------- sealing */

static char filter[MOST_FILTER_BYTES] __attribute__((aligned(8)));
static long filter_bytes; /* 0: kernel.so is not mapped yet, or nothing is to be sealed */

unsigned la_version(unsigned version) { return version; }

/* Called for each library once it is mapped: read the filter if this is the kernel's. */
unsigned la_objopen(const Object *object, long namespace_id, unsigned long *cookie) {
    const char *end = object->name, last[] = "/kernel.so";
    long length = sizeof last - 1, i = 0;
    char path[4096];
    (void)namespace_id, (void)cookie;
    while (*end) ++end;
    if (end - object->name < length || end - object->name >= (long)sizeof path) return 0;
    while (i < length && end[i - length] == last[i]) ++i;
    if (i < length) return 0;
    for (i = 0; object->name + i < end - length; ++i) path[i] = object->name[i];
    for (length = 0; length < 6; ++length) path[i + length] = "/seal"[length];
    long fd = ask(OPENAT, -100, (long)path, 0);
    if (fd >= 0) filter_bytes = ask(READ, fd, (long)filter, sizeof filter);
    return 0;
}

/* Called when all libraries of a `dlopen` are mapped and none is relocated. */
void la_activity(unsigned long *cookie, unsigned activity) {
    struct {
        unsigned short length;
        const void *program;
    } header = {(unsigned short)(filter_bytes / 8), filter};
    (void)cookie;
    if (activity != 0 || filter_bytes <= 0) return;
    /* A filter for all threads, without the mitigation that slows a filtered process. */
    ask(SECCOMP, 1, 1 | 4, (long)&header);
    filter_bytes = 0;
}
