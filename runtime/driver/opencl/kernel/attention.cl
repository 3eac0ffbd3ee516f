// Causal attention over the cache, with an online softmax: of the positions so far it holds the largest score, the sum
// of the exponentials of scores less that, and the values weighted by them. DIM is the number of columns of a head,
// rounded up to 4 as DIM4 vectors.
//
// An item is a query head of a row, and one of parts of the positions. With several parts their sums are joined by
// attention_join.

#ifdef KV_F16
#define LOAD4(at, p) vload_half4(at, p)
#define LOAD1(at, p) vload_half(at, p)
#elif defined(KV_Q8)
#define LOAD4(at, p) (convert_float4(vload4(at, p)) - 128.0f)
#define LOAD1(at, p) ((p)[at] - 128.0f)
#else
#define LOAD4(at, p) vload4(at, p)
#define LOAD1(at, p) ((p)[at])
#endif

// A query is rounded as keys are.
#ifdef KV_Q8
#define QUERY(x) CODE_Q8(x, step)
#else
#define QUERY(x) (x)
#endif

__kernel void attention(IN(x), OUT(y), __global const KV_TYPE *keys, long keys_at, __global const KV_TYPE *values,
	long values_at, __global const int *notes, int places, int group, int context, long sequence, float scale, float cap,
	int window, int parts, __global float *scratch, long scratch_at) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
	int head = get_global_id(0), heads = get_global_size(0), row = get_global_id(1), part = get_global_id(2);
	int kv = head / group, position = notes[places + 4 * row + 1];
	long begin = notes[places + 4 * row] * sequence + (long)kv * context * CACHED(DIM);
	x += (long)row * x_ld + (kv * (group + 2) + head % group) * DIM;
	keys += keys_at + begin;
	values += values_at + begin;

	int first = window > 0 ? max(0, position + 1 - window) : 0, count = position + 1 - first;
	int each = (count + parts - 1) / parts, end = first + min(count, (part + 1) * each);
	first += part * each;

	float4 query[DIM / 4 + 1], sum[DIM / 4 + 1];
	float query1[3], sum1[3];
#ifdef KV_Q8
	float step = step_q8(x, DIM);
	scale *= step;
#endif
	for (int i = 0; i < DIM / 4; i++) {
		query[i] = QUERY(vload4(i, x)) * scale;
		sum[i] = 0;
	}
	for (int i = 0; i < DIM % 4; i++) {
		query1[i] = QUERY(x[DIM / 4 * 4 + i]) * scale;
		sum1[i] = 0;
	}
	float top = -INFINITY, total = 0;
	for (int p = first; p < end; p++) {
		__global const KV_TYPE *key = keys + (long)p * CACHED(DIM);
		__global const KV_TYPE *value = values + (long)p * CACHED(DIM);
		float4 products = 0;
		for (int i = 0; i < DIM / 4; i++)
			products += query[i] * LOAD4(i, key);
		float score = products.x + products.y + products.z + products.w;
		for (int i = 0; i < DIM % 4; i++)
			score += query1[i] * LOAD1(DIM / 4 * 4 + i, key);
		score *= CACHED_SCALE(key, DIM);
		if (cap > 0)
			score = cap * tanh(score / cap);
		if (score > top) {
			float shrink = exp(top - score);
			top = score;
			total *= shrink;
			for (int i = 0; i < DIM / 4; i++)
				sum[i] *= shrink;
			for (int i = 0; i < DIM % 4; i++)
				sum1[i] *= shrink;
		}
		float share = exp(score - top);
		total += share;
		share *= CACHED_SCALE(value, DIM);
		for (int i = 0; i < DIM / 4; i++)
			sum[i] += share * LOAD4(i, value);
		for (int i = 0; i < DIM % 4; i++)
			sum1[i] += share * LOAD1(DIM / 4 * 4 + i, value);
	}
	if (parts > 1) {
		__global float *out = scratch + scratch_at + (((long)row * heads + head) * parts + part) * (DIM + 2);
		out[DIM] = top;
		out[DIM + 1] = total;
		for (int i = 0; i < DIM / 4; i++)
			vstore4(sum[i], i, out);
		for (int i = 0; i < DIM % 4; i++)
			out[DIM / 4 * 4 + i] = sum1[i];
		return;
	}
	__global float *out = y + (long)row * y_ld + head * DIM;
	for (int i = 0; i < DIM / 4; i++)
		vstore4(sum[i] / total, i, out);
	for (int i = 0; i < DIM % 4; i++)
		out[DIM / 4 * 4 + i] = sum1[i] / total;
}

// attention_join adds the parts of a query head of a row. A part without positions has a sum of zero.
__kernel void attention_join(OUT(y), int parts, __global const float *scratch, long scratch_at) {
	ROWS_OF(float, y);
	int head = get_global_id(0), heads = get_global_size(0), row = get_global_id(1);
	__global const float *from = scratch + scratch_at + ((long)row * heads + head) * parts * (DIM + 2);
	float top = -INFINITY, total = 0;
	for (int part = 0; part < parts; part++)
		top = from[part * (DIM + 2) + DIM] > top ? from[part * (DIM + 2) + DIM] : top;
	for (int part = 0; part < parts; part++)
		if (from[part * (DIM + 2) + DIM + 1] != 0)
			total += from[part * (DIM + 2) + DIM + 1] * exp(from[part * (DIM + 2) + DIM] - top);
	for (int j = 0; j < DIM; j++) {
		float sum = 0;
		for (int part = 0; part < parts; part++)
			if (from[part * (DIM + 2) + DIM + 1] != 0)
				sum += from[part * (DIM + 2) + j] * exp(from[part * (DIM + 2) + DIM] - top);
		y[(long)row * y_ld + head * DIM + j] = sum / total;
	}
}
