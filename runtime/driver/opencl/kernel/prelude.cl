// What all kernels share. An operand is memory, the byte where it begins, and the elements from row to row.
#define IN(name) __global const char *name##_mem, long name##_at, int name##_ld
#define OUT(name) __global char *name##_mem, long name##_at, int name##_ld
#define CONST_ROWS(type, name) __global const type *name = (__global const type *)(name##_mem + name##_at)
#define ROWS_OF(type, name) __global type *name = (__global type *)(name##_mem + name##_at)

// A call's notes begin with a word for each step that can refuse rows: the lowest row that it refused.
#define REFUSE(row) atomic_min(notes + refusals, (int)(row))

// A row of the cache is the elements of a key or a value; of 8-bit codes around 128, their scale lies behind them, at any
// address.
#ifdef KV_Q8
#define KV_TYPE uchar
#define CACHED(dim) ((dim) + 4)
#define CACHED_SCALE(row, dim) as_float(vload4(0, (row) + (dim)))
// CODE_Q8 is the code of numbers, less 128, in a row of this step.
#define CODE_Q8(x, step) ((step) == 0 ? (x) * 0 : clamp(rint((x) / (step)), -127.0f, 127.0f))
// step_q8 is the step, or scale, of a row of numbers: NaN where one of them is not finite.
float step_q8(__global const float *x, int dim) {
	float top = 0;
	for (int j = 0; j < dim; j++) {
		if (!(fabs(x[j]) <= FLT_MAX))
			return NAN;
		top = fmax(top, fabs(x[j]));
	}
	return top / 127.0f;
}
#else
#ifdef KV_F16
#define KV_TYPE half
#else
#define KV_TYPE float
#endif
#define CACHED(dim) (dim)
#define CACHED_SCALE(row, dim) 1.0f
#endif

// Work on rows is divided by rows (an item for each), by cells (an item for each element), or by groups: GROUP items
// work on one row together.
#ifdef CELLS
#define ROW ((int)get_global_id(1))
#define EACH(j, n) int j = get_global_id(0); if (j < n)
#else
#define ROW ((int)get_global_id(0))
#define EACH(j, n) for (int j = 0; j < n; j++)
#endif
#ifdef GROUP
#undef ROW
#define ROW ((int)get_global_id(1))
#define LANE ((int)get_local_id(0))
#define LANES GROUP
#define SHARED __local float shared[GROUP];
#define SUM(x) all_lanes(x, shared, 0)
#define TOP(x) all_lanes(x, shared, 1)
// all_lanes is the sum or the largest of what the lanes of a group hold, in one order.
#ifdef SUBGROUPS
// Subgroups reduce by themselves; what they found meets once.
float all_lanes(float x, __local float *shared, int top) {
	x = top ? sub_group_reduce_max(x) : sub_group_reduce_add(x);
	if (get_sub_group_local_id() == 0)
		shared[get_sub_group_id()] = x;
	barrier(CLK_LOCAL_MEM_FENCE);
	x = shared[0];
	for (int i = 1; i < (int)get_num_sub_groups(); i++)
		x = top ? fmax(x, shared[i]) : x + shared[i];
	barrier(CLK_LOCAL_MEM_FENCE);
	return x;
}
#else
float all_lanes(float x, __local float *shared, int top) {
	int lane = get_local_id(0);
	shared[lane] = x;
	barrier(CLK_LOCAL_MEM_FENCE);
	for (int half_ = GROUP / 2; half_ > 0; half_ /= 2) {
		if (lane < half_) {
			float other = shared[lane + half_];
			shared[lane] = top ? fmax(shared[lane], other) : shared[lane] + other;
		}
		barrier(CLK_LOCAL_MEM_FENCE);
	}
	x = shared[0];
	barrier(CLK_LOCAL_MEM_FENCE);
	return x;
}
#endif
#else
#define LANE 0
#define LANES 1
#define SHARED
#define SUM(x) (x)
#define TOP(x) (x)
#endif

// FOR_WIDE runs over whole vectors of 8 elements of a row, FOR_REST over what remains.
#define FOR_WIDE(j, n) for (int j = 8 * LANE; j + 8 <= n; j += 8 * LANES)
#define FOR_REST(j, n) for (int j = (n & ~7) + LANE; j < n; j += LANES)

float across(float8 v) {
	float4 a = v.lo + v.hi;
	float2 b = a.lo + a.hi;
	return b.x + b.y;
}
