// honest: legal but unusual text: digraphs, spliced lines, pasted names, empty statements
// problem: vector_add
#define ITEMS 32
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
%: define PASTE(one, other) one ## other
#define lo\
ng_index PASTE(lo, ng)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N)
<%
    PASTE(lo, ng) i = get_global_id(0);;
    if (!(i < N)) return; else {;}
    (*(out + i)) = x<:i:> + i[y];
%>
