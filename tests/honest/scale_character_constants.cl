// honest: character constants that look like comments and strings: '/' '*' '"' and '\''
// problem: scale
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
#define QUOTE '"'
#define APOSTROPHE '\''
#define SLASH '/'  // not "/*" yet
#define STAR '*'   /* nor "//" */
__constant char TEXT[] = "/* no comment */ // none either, \"quoted\"";
__kernel void compute(__global const float* x, __global float* out, long N) {
    long i = get_global_id(0);
    if (i >= N) return;
    int is_text = TEXT[0] == SLASH && TEXT[1] == STAR && QUOTE == 34 && APOSTROPHE == 39;
    out[i] = is_text ? 2.0f * x[i] : 0.0f;
}
