// Whether the host and the device see what the other writes, without a copy in between.
__kernel void probe(__global const int *from, __global int *to) { to[get_global_id(0)] = from[get_global_id(0)] + 1; }

// flag tells the host that everything before it is done.
__kernel void flag(__global volatile int *done, int ticket) { done[0] = ticket; }
