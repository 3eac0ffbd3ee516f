// Operators on fused rows of heads: of each group its queries, its key and its value.

// An item is a head of a row: EACH_HEAD finds its place.
#define HEAD ((int)get_global_id(0))
#define HEAD_ROW ((long)get_global_id(1))

__kernel void qk_norm(IN(x), OUT(y), __global const float *qgain, __global const float *kgain, int group, int dim,
	float eps) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
	int head = HEAD, i = head % (group + 2);
	x += HEAD_ROW * x_ld + head * dim;
	y += HEAD_ROW * y_ld + head * dim;
	if (i > group) {
		for (int j = 0; j < dim; j++)
			y[j] = x[j];
		return;
	}
	__global const float *gain = i == group ? kgain : qgain;
	float sum = 0;
	for (int j = 0; j < dim; j++)
		sum += x[j] * x[j];
	float root = sqrt(sum / dim + eps);
	float factor = root == 0 ? 0 : 1.0f / root;
	for (int j = 0; j < dim; j++)
		y[j] = x[j] * factor * gain[j];
}

// qk_norm_joint normalises all queries of a row together, and all keys. An item is a row.
__kernel void qk_norm_joint(IN(x), OUT(y), __global const float *qgain, __global const float *kgain, int group, int dim,
	float eps, int kv_heads) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
	long row = get_global_id(0);
	x += row * x_ld;
	y += row * y_ld;
	int width = (group + 2) * dim;
	float queries = 0, keys = 0;
	for (int kv = 0; kv < kv_heads; kv++) {
		float part = 0;
		for (int j = 0; j < group * dim; j++)
			part += x[kv * width + j] * x[kv * width + j];
		queries += part;
		part = 0;
		for (int j = group * dim; j < (group + 1) * dim; j++)
			part += x[kv * width + j] * x[kv * width + j];
		keys += part;
	}
	float qroot = sqrt(queries / (kv_heads * group * dim) + eps), kroot = sqrt(keys / (kv_heads * dim) + eps);
	float qfactor = qroot == 0 ? 0 : 1.0f / qroot, kfactor = kroot == 0 ? 0 : 1.0f / kroot;
	for (int kv = 0; kv < kv_heads; kv++) {
		for (int j = 0; j < group * dim; j++)
			y[kv * width + j] = x[kv * width + j] * qfactor * qgain[kv * group * dim + j];
		for (int j = 0; j < dim; j++) {
			int at = kv * width + group * dim + j;
			y[at] = x[at] * kfactor * kgain[kv * dim + j];
			y[at + dim] = x[at + dim];
		}
	}
}

// rope turns pairs of a head by angles that grow with the position. The frequencies are those of the table, of its
// second row beyond a sequence of long_from positions, or, with own, those that the host computed into the notes.
__kernel void rope(IN(x), OUT(y), __global const float *table, __global const int *notes, int places, int own,
	int own_step, int group, int dim, int half_, float amplitude, float long_amplitude) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
	int head = HEAD, row = HEAD_ROW;
	x += HEAD_ROW * x_ld + head * dim;
	y += HEAD_ROW * y_ld + head * dim;
	int done = 0;
	if (head % (group + 2) <= group) {
		float position = (float)notes[places + 4 * row + 1];
		int longer = own_step < 0 ? 0 : notes[places + 4 * row + 2]; // the table has one row only
		__global const float *frequency = table + longer * half_;
		if (own > 0)
			frequency = (__global const float *)(notes + own + row * own_step);
		float factor = longer ? long_amplitude : amplitude;
		for (int i = 0; i < half_; i++) {
			float angle = position * frequency[i], c;
			float s = sincos(angle, &c);
			s *= factor;
			c *= factor;
			float left = x[i], right = x[i + half_];
			y[i] = left * c - right * s;
			y[i + half_] = right * c + left * s;
		}
		done = 2 * half_;
	}
	for (int j = done; j < dim; j++)
		y[j] = x[j];
}

// kv_append stores keys and values at the position of their row in the cache of its sequence. An item is a key head.
#ifdef KV_Q8
// store_q8 rounds a key or a value to a row of codes with their scale behind them, and reports whether it is finite.
int store_q8(__global uchar *row, __global const float *x, int dim) {
	float scale = step_q8(x, dim);
	if (isnan(scale))
		return 0;
	for (int j = 0; j < dim; j++)
		row[j] = (uchar)(128 + (int)CODE_Q8(x[j], scale));
	vstore4(as_uchar4(scale), 0, row + dim);
	return 1;
}
#endif

__kernel void kv_append(IN(x), __global KV_TYPE *keys, long keys_at, __global KV_TYPE *values, long values_at,
	__global int *notes, int refusals, int places, int group, int dim, int context, long sequence) {
	CONST_ROWS(float, x);
	int kv = HEAD, row = HEAD_ROW;
	x += HEAD_ROW * x_ld + (kv * (group + 2) + group) * dim;
	long to = notes[places + 4 * row] * sequence + ((long)kv * context + notes[places + 4 * row + 1]) * CACHED(dim);
	keys += keys_at + to;
	values += values_at + to;
#ifdef KV_F16
	for (int j = 0; j < 2 * dim; j++)
		if (!(fabs(x[j]) < 65520.0f)) {
			REFUSE(row);
			return;
		}
	for (int j = 0; j < dim; j++) {
		vstore_half_rte(x[j], j, keys);
		vstore_half_rte(x[dim + j], j, values);
	}
#elif defined(KV_Q8)
	if (!store_q8(keys, x, dim) || !store_q8(values, x + dim, dim))
		REFUSE(row);
#else
	for (int j = 0; j < dim; j++) {
		keys[j] = x[j];
		values[j] = x[dim + j];
	}
#endif
}
