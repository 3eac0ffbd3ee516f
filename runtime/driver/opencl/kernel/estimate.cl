// Estimates of scores from codes of 8 bits (op.Estimate), for heads of DIM columns. Codes are signed bytes, the columns of
// a head rounded up to whole words with codes of zero. In the order of the launches:
//
//   estimate_scales   takes the scales of the nearest bucket for each key head
//   estimate_queries  rounds the queries of the call
//   estimate_keys     rounds the keys that some query sees before its block
//   estimate_tops     finds each query's largest product
//   estimate          pools what positions are worth to the queries of a block
//
// The last two compute the products twice: they are cheaper than keeping them.
#pragma OPENCL FP_CONTRACT OFF

#ifdef KV_F16
#define KEY(at, p) vload_half(at, p)
#else
#define KEY(at, p) ((p)[at])
#endif

#define WORDS ((DIM + 3) / 4)

// Keys of an 8-bit cache keep their codes and scales, which lie behind the codes here as well: a product of codes is then
// compared with others times the scale of its key.
#ifdef KV_Q8
#define KEY_BYTES (4 * WORDS + 4)
#define SCORE float
#define LEAST -INFINITY
#define SCORE_OF(query, key) ((float)product(query, key) * *(__global const float *)((key) + 4 * WORDS))
#else
#define KEY_BYTES (4 * WORDS)
#define SCORE int
#define LEAST INT_MIN
#define SCORE_OF(query, key) product(query, key)
#endif

// INNER is the first position that all of count queries from a position on see.
#define INNER(position, count, window) ((window) > 0 ? min(position, max(0, (position) + (count) - (window))) : 0)

// scales holds one of queries for each head, and then one of keys for each key head.
__kernel void estimate_scales(IN(x), __global const float *heads, __global const KV_TYPE *keys, long keys_at,
	__global const int *notes, int places, int rows, int kv_heads, int group, int context, long sequence, int block,
	int window, int buckets, __global char *scales_mem, long scales_at) {
	CONST_ROWS(float, x); ROWS_OF(float, scales);
	int kv = get_global_id(0);
	if (get_global_id(1) > 0)
		return;
	float query_factor = 1, key_factor = 1;
	if (buckets > 1) {
		int begin = notes[places + 1], end = begin + (rows - 1) / block * block;
		float query_scale = 0, key_scale = heads[3 * kv * group + 1], largest_query = 0, largest_key = 0;
		for (int i = 0; i < group; i++) {
			query_scale = fmax(query_scale, heads[3 * (kv * group + i)]);
			for (int row = 0; row < rows; row++)
				for (int j = 0; j < DIM; j++)
					largest_query = fmax(largest_query, fabs(x[(long)row * x_ld + (kv * (group + 2) + i) * DIM + j]));
		}
#ifdef KV_Q8
		key_scale = 0;
#else
		keys += keys_at + notes[places] * sequence + (long)kv * context * DIM;
		for (long j = (long)INNER(begin, min(block, rows), window) * DIM; j < (long)end * DIM; j++)
			largest_key = fmax(largest_key, fabs(KEY(j, keys)));
#endif
		float factors[3] = {0.5f, 1, 2}, least = INFINITY;
		for (int i = 0; i < buckets; i++) {
			float query = factors[buckets == 3 ? i : i / 3], key = factors[i % 3];
			float query_off = largest_query / 127.0f - query_scale * query, key_off = largest_key / 127.0f - key_scale * key;
			float square = query_off * query_off + key_off * key_off;
			if (square < least) {
				least = square;
				query_factor = query;
				key_factor = key;
			}
		}
	}
	for (int i = 0; i < group; i++)
		scales[kv * group + i] = heads[3 * (kv * group + i)] * query_factor;
#ifdef KV_Q8
	scales[kv_heads * group + kv] = 1;
#else
	scales[kv_heads * group + kv] = heads[3 * kv * group + 1] * key_factor;
#endif
}

// code is a number as 8 bits hold it under a scale.
char code(float value, float scale) { return (char)clamp(rint(value / scale), -127.0f, 127.0f); }

__kernel void estimate_queries(IN(x), __global int *notes, int refusals, int group, __global char *scales_mem,
	long scales_at, __global char *codes, long codes_at) {
	CONST_ROWS(float, x); CONST_ROWS(float, scales);
	int head = get_global_id(0), heads = get_global_size(0), row = get_global_id(1);
	x += (long)row * x_ld + (head / group * (group + 2) + head % group) * DIM;
	codes += codes_at + ((long)row * heads + head) * 4 * WORDS;
	for (int j = 0; j < DIM; j++) {
		if (!(fabs(x[j]) <= FLT_MAX)) {
			REFUSE(row);
			return;
		}
		codes[j] = code(x[j], scales[head]);
	}
	for (int j = DIM; j < 4 * WORDS; j++)
		codes[j] = 0;
}

// An item rounds every rows-th key.
__kernel void estimate_keys(__global const KV_TYPE *keys, long keys_at, __global int *notes, int refusals, int places,
	int rows, int heads, int context, long sequence, int width, int block, int window, __global char *scales_mem,
	long scales_at, __global char *codes, long codes_at) {
	CONST_ROWS(float, scales);
	int kv = get_global_id(0), begin = notes[places + 1];
	int from = INNER(begin, min(block, rows), window), end = begin + (rows - 1) / block * block;
	keys += keys_at + notes[places] * sequence + (long)kv * context * CACHED(DIM);
	codes += codes_at + (long)kv * width * KEY_BYTES;
	for (int position = from + (int)get_global_id(1); position < end; position += rows) {
		__global const KV_TYPE *key = keys + (long)position * CACHED(DIM);
		__global char *to = codes + (long)position * KEY_BYTES;
#ifdef KV_Q8
		for (int j = 0; j < DIM; j++)
			to[j] = (char)(key[j] - 128);
		*(__global float *)(to + 4 * WORDS) = CACHED_SCALE(key, DIM);
#else
		for (int j = 0; j < DIM; j++) {
			float value = KEY(j, key);
			if (!(fabs(value) <= FLT_MAX)) {
				REFUSE(0);
				return;
			}
			to[j] = code(value, scales[heads + kv]);
		}
#endif
		for (int j = DIM; j < 4 * WORDS; j++)
			to[j] = 0;
	}
}

// product is that of the codes of a query and a key.
int product(__global const char *query, __global const char *key) {
	int sum = 0;
#ifdef DOT
	__global const uint *a = (__global const uint *)query, *b = (__global const uint *)key;
	for (int i = 0; i < WORDS; i++)
		sum += dot_4x8packed_ss_int(a[i], b[i]);
#else
	int4 sums = 0;
	for (int i = 0; i < WORDS; i++)
		sums += convert_int4(vload4(i, query)) * convert_int4(vload4(i, key));
	sum = sums.x + sums.y + sums.z + sums.w;
#endif
	return sum;
}

// A block of queries that a row belongs to: its first row, how many it has, and the positions that all of them see.
#define BLOCK_OF(row) \
	int first = (row) / block * block, count = min(block, rows - first), end = notes[places + 1] + first; \
	int inner = INNER(end, count, window)

__kernel void estimate_tops(__global const int *notes, int places, int rows, int group, int width, int block, int window,
	__global const char *queries, long queries_at, __global const char *keys, long keys_at, __global char *tops_mem,
	long tops_at) {
	ROWS_OF(SCORE, tops);
	int head = get_global_id(0), heads = get_global_size(0), row = get_global_id(1);
	BLOCK_OF(row);
	queries += queries_at + ((long)row * heads + head) * 4 * WORDS;
	keys += keys_at + (long)(head / group) * width * KEY_BYTES;
	SCORE top = LEAST;
	for (int position = inner; position < end; position++)
		top = max(top, SCORE_OF(queries, keys + (long)position * KEY_BYTES));
	tops[row * heads + head] = top;
}

// An item pools the positions of its block by turns with the block's other rows.
__kernel void estimate(OUT(y), __global const int *notes, int places, int rows, int group, int width, int block, int window,
	__global char *scales_mem, long scales_at, __global const char *queries, long queries_at,
	__global const char *keys, long keys_at, __global char *tops_mem, long tops_at) {
	ROWS_OF(float, y); CONST_ROWS(float, scales); CONST_ROWS(SCORE, tops);
	int head = get_global_id(0), heads = get_global_size(0), row = get_global_id(1);
	BLOCK_OF(row);
	queries += queries_at + ((long)first * heads + head) * 4 * WORDS;
	keys += keys_at + (long)(head / group) * width * KEY_BYTES;
	y += (long)(row / block) * y_ld + (long)head * width;
	float scale = scales[head] * scales[heads + head / group];
	for (int position = inner + row - first; position < end; position += count) {
		float worth = -INFINITY;
		for (int i = 0; i < count; i++) {
			float score = (float)SCORE_OF(queries + (long)i * heads * 4 * WORDS, keys + (long)position * KEY_BYTES) * scale;
			worth = fmax(worth, score - (float)tops[(first + i) * heads + head] * scale);
		}
		y[position] = worth;
	}
}
