// Operators on rows that need one pass.

float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

float activation(int act, float x) {
	switch (act) {
	case 0:
		return x * sigmoid(x);
	case 1:
		return 0.5f * x * erfc(-x * 0.70710678118654752f);
	case 2:
		return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
	}
	return isnan(x) ? x : fmax(x, 0.0f);
}

__kernel void add(IN(a), IN(b), OUT(y), int n) {
	CONST_ROWS(float, a); CONST_ROWS(float, b); ROWS_OF(float, y);
	long row = ROW;
	EACH(j, n) y[row * y_ld + j] = a[row * a_ld + j] + b[row * b_ld + j];
}

__kernel void gate(IN(x), IN(g), OUT(y), int n) {
	CONST_ROWS(float, x); CONST_ROWS(float, g); ROWS_OF(float, y);
	long row = ROW;
	float factor = sigmoid(g[row * g_ld]);
	EACH(j, n) y[row * y_ld + j] = x[row * x_ld + j] * factor;
}

__kernel void softcap(IN(x), OUT(y), int n, float cap) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
	long row = ROW;
	EACH(j, n) y[row * y_ld + j] = cap * tanh(x[row * x_ld + j] / cap);
}

__kernel void clip(IN(x), OUT(y), int n, float cap) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
	long row = ROW;
	EACH(j, n) {
		float value = x[row * x_ld + j];
		y[row * y_ld + j] = value < -cap ? -cap : value > cap ? cap : value; // NaN stays NaN
	}
}

__kernel void activate(IN(x), OUT(y), int n, int act) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
	long row = ROW;
	EACH(j, n) y[row * y_ld + j] = activation(act, x[row * x_ld + j]);
}

__kernel void glu(IN(x), OUT(y), int n, int act, int interleave) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
	long row = ROW;
	EACH(j, n) {
		long at = row * x_ld + j / interleave * 2 * interleave + j % interleave;
		y[row * y_ld + j] = activation(act, x[at]) * x[at + interleave];
	}
}

__kernel void combine(IN(x), IN(weights), OUT(y), int n, int fan) {
	CONST_ROWS(float, x); CONST_ROWS(float, weights); ROWS_OF(float, y);
	long row = ROW;
	EACH(j, n) {
		float sum = 0;
		for (int i = 0; i < fan; i++)
			sum += x[(row * fan + i) * x_ld + j] * weights[row * weights_ld + i];
		y[row * y_ld + j] = sum;
	}
}

// near_share is SparseMixer's weight of an expert: its probability among the experts that are not yet chosen and whose
// logits are within twice the jitter of its own, relative to the larger magnitude.
float near_share(__global const float *logits, int experts, __global const int *chosen, int count, int expert,
	float jitter2) {
	float top = logits[expert], sum = 0;
	for (int i = 0; i < experts; i++) {
		bool far_ = (top - logits[i]) / fmax(fabs(logits[i]), top) > jitter2;
		for (int j = 0; j < count; j++)
			far_ = far_ || chosen[j] == i;
		if (!far_)
			sum += exp(logits[i] - top);
	}
	return 1.0f / sum;
}

// route chooses the experts of a row, the first of equals first, and computes their weights. Router is the index of
// op.Routers. A logit without an order is refused.
__kernel void route(IN(logits), OUT(ids), OUT(weights), __global int *notes, int refusals, int experts, int fan, int router,
	float jitter2) {
	CONST_ROWS(float, logits); ROWS_OF(int, ids); ROWS_OF(float, weights);
	long row = ROW;
	EACH(only, 1) {
		logits += row * logits_ld;
		ids += row * ids_ld;
		weights += row * weights_ld;
		for (int i = 0; i < experts; i++)
			if (!isfinite(logits[i])) {
				REFUSE(row);
				return;
			}
		int last = -1;
		for (int j = 0; j < fan; j++) {
			int best = -1;
			for (int i = 0; i < experts; i++) {
				bool after = last < 0 || logits[i] < logits[last] || logits[i] == logits[last] && i > last;
				if (after && (best < 0 || logits[i] > logits[best]))
					best = i;
			}
			if (router == 2)
				weights[j] = near_share(logits, experts, ids, j, best, jitter2);
			ids[j] = last = best;
		}
		if (router == 2)
			return;
		float top = logits[ids[0]], sum = 0;
		if (router == 1)
			for (int j = 0; j < fan; j++)
				sum += exp(logits[ids[j]] - top);
		else
			for (int i = 0; i < experts; i++)
				sum += exp(logits[i] - top);
		for (int j = 0; j < fan; j++)
			weights[j] = exp(logits[ids[j]] - top) / sum;
	}
}

// copy moves rows of n elements of 1, 2 or 4 bytes, beginning with row first of x.
#define COPY(name, type) \
__kernel void name(IN(x), OUT(y), int n, int first) { \
	CONST_ROWS(type, x); ROWS_OF(type, y); \
	long row = ROW; \
	EACH(j, n) y[row * y_ld + j] = x[(row + first) * x_ld + j]; \
}
COPY(copy1, uchar)
COPY(copy2, ushort)
COPY(copy4, uint)

// embed looks rows up in a table. An id outside it is refused.
#define EMBED(name, type, value) \
__kernel void name(IN(ids), OUT(y), __global const type *table, __global int *notes, int refusals, int n, int k, \
	float scale) { \
	CONST_ROWS(int, ids); ROWS_OF(float, y); \
	long row = ROW; \
	long id = ids[row * ids_ld]; \
	if (id < 0 || id >= k) { \
		REFUSE(row); \
		return; \
	} \
	EACH(j, n) y[row * y_ld + j] = scale * (value); \
}
EMBED(embed_f32, float, table[id * n + j])
EMBED(embed_bf16, ushort, as_float((uint)table[id * n + j] << 16))
EMBED(embed_f16, half, vload_half(id * n + j, table))
// A tied head's weight is a table whose rows are its columns: tiles of [n/4][32][4] codes, 32 scales and 32 sums.
EMBED(embed_q8c, char, table[id / 32 * ((n + 3) / 4 * 128 + 256) + j / 4 * 128 + id % 32 * 4 + j % 4] *
	((__global const float *)(table + id / 32 * ((n + 3) / 4 * 128 + 256) + (n + 3) / 4 * 128))[id % 32])
