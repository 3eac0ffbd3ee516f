// Matrix products with weights in tiles of 32 columns (planir/pack). One of W32, W16, Q8C, Q4 and Q4C says how a tile is
// made; Q4 is the number of rows that share a scale. HALF and GRID round results, to f16 or to multiples of a step. ROWS
// rows are multiplied at a time, so that a weight that was unpacked serves all of them.

#if ROWS == 1
#define ALL(F) F(0)
#elif ROWS == 2
#define ALL(F) F(0) F(1)
#elif ROWS == 3
#define ALL(F) F(0) F(1) F(2)
#elif ROWS == 4
#define ALL(F) F(0) F(1) F(2) F(3)
#elif ROWS == 6
#define ALL(F) F(0) F(1) F(2) F(3) F(4) F(5)
#elif ROWS == 8
#define ALL(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#endif

#ifdef Q4
#define BLOCK (16 * Q4 + 64)
#endif

// EXPERTS: each row is multiplied by the weight of the expert that it is sent to, so that ROWS is 1. Weights lie stride
// bytes apart. A row r is the choice r % fan of token r / fan, whose activations are row r / per_token. Where some rows
// are sent to nobody here (sent), their expert is -1 and their result 0.
#ifdef EXPERTS
#define IDS IN(ids),
#define EXPERT_ARGUMENTS , int experts, int fan, int per_token, int sent, int stride
#define INPUT_ROW(i) (r0 / per_token)
#define CHOOSE(type, zero) \
	CONST_ROWS(int, ids); \
	int expert = ids[(long)(r0 / fan) * ids_ld + r0 % fan]; \
	if (expert < 0 || expert >= experts) { \
		if (expert != -1 || !sent) \
			REFUSE(r0 / fan); \
		zero; \
		return; \
	} \
	weight += (long)expert * (stride / (int)sizeof(type));
#define ZERO16 for (int j = 0; j < 16 && column + j < n; j++) y[(long)r0 * y_ld + column + j] = 0
#define ZERO32 for (int j = 0; j < 32 && column + j < n; j++) y[(long)r0 * y_ld + column + j] = 0
#define ZERO1 if (slice == 0 && column < n) y[(long)r0 * y_ld + column] = 0
#else
#define IDS
#define EXPERT_ARGUMENTS
#define INPUT_ROW(i) min(r0 + i, rows - 1)
#define CHOOSE(type, zero)
#endif

// GRID: results are rounded to multiples of a step, of which the second of two rows of steps holds it.
#ifdef GRID
#define GRID_ARGUMENT , __global const float *steps
#define RESULT_STEP steps[n]
#else
#define GRID_ARGUMENT
#define RESULT_STEP 0
#endif
float to_grid(float v, float step) { return rint(clamp(v / step, -32767.0f, 32767.0f)) * step; }

// narrow16 rounds to f16.
float16 narrow16(float16 v) {
	ushort half_[16];
	vstore_half16_rte(v, 0, (half *)half_);
	return vload_half16(0, (const half *)half_);
}

// store16 writes 16 results of a row, or those that the matrix has.
void store16(__global float *y, float16 v, __global const float *bias, int biased, int column, int n,
	__global int *notes, int refusals, int row, float step) {
	int whole = column + 16 <= n;
	float kept[16];
	vstore16(v, 0, kept);
	if (biased)
		for (int j = 0; j < 16 && column + j < n; j++)
			kept[j] += bias[column + j];
#ifdef HALF
	vstore16(narrow16(vload16(0, kept)), 0, kept);
	for (int j = 0; j < 16 && column + j < n; j++)
		if (!isfinite(kept[j]))
			REFUSE(row);
#endif
#ifdef GRID
	for (int j = 0; j < 16 && column + j < n; j++) {
		if (!isfinite(kept[j]))
			REFUSE(row);
		kept[j] = to_grid(kept[j], step);
	}
#endif
	if (whole) {
		vstore16(vload16(0, kept), 0, y + column);
		return;
	}
	for (int j = 0; column + j < n; j++)
		y[column + j] = kept[j];
}

#if defined TILE && !defined U8
// An item computes ROWS rows of 16 columns, half a tile.

// weights16 are the weights of row p in half a tile, without the scale of a column.
float16 weights16(__global const uchar *tile, int p, int side) {
#if defined W32
	return vload16(2 * p + side, (__global const float *)tile);
#elif defined W16
	uint16 words = vload16(p, (__global const uint *)tile);
	float16 v = as_float16(side ? words & 0xffff0000u : words << 16);
#ifdef HALF
	v = narrow16(v);
#endif
	return v;
#elif defined Q8C
	uint16 words = vload16(p / 4 * 2 + side, (__global const uint *)tile);
	return convert_float16(as_int16(words << (uint16)(24 - 8 * (p % 4))) >> 24);
#elif defined Q4C
	uint16 words = vload16(p / 4, (__global const uint *)tile);
	return convert_float16(as_int16((words >> (uint16)(8 * (p % 4) + 4 * side)) & 15u)) - 8.0f;
#else
	__global const uchar *block = tile + (long)(p / Q4) * BLOCK;
	uint16 words = vload16(p % Q4 / 4, (__global const uint *)block);
	float16 codes = convert_float16(as_int16((words >> (uint16)(8 * (p % 4) + 4 * side)) & 15u));
	return (codes - 8.0f) * vload_half16(side, (__global const half *)(block + 16 * Q4));
#endif
}

__kernel void matmul(IN(x), IDS OUT(y), __global const uchar *weight, __global const float *bias, int biased,
	__global int *notes, int refusals, int k, int n, int tile_bytes, int first, int rows EXPERT_ARGUMENTS GRID_ARGUMENT) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
	int r0 = first + (int)get_global_id(0) * ROWS, column = (int)get_global_id(1) * 16, side = column / 16 % 2;
	CHOOSE(uchar, ZERO16)
	__global const uchar *tile = weight + (long)(column / 32) * tile_bytes;
#define BEGIN(i) \
	__global const float *x##i = x + (long)INPUT_ROW(i) * x_ld; \
	float16 sum##i = 0;
	ALL(BEGIN)
	// One row of the weight at a time: its 16 weights and ROWS sums fit the registers of a CPU.
#define ONE(i) sum##i = fma((float16)x##i[p], w, sum##i);
	for (int p = 0; p < k; p++) {
		float16 w = weights16(tile, p, side);
		ALL(ONE)
	}
#ifdef Q8C
	float16 scale = vload16(side, (__global const float *)(tile + (k + 3) / 4 * 128));
#define SCALED(i) sum##i *= scale;
	ALL(SCALED)
#elif defined Q4C
	float16 scale = vload16(side, (__global const float *)(tile + (k + 31) / 32 * 512));
#define SCALED(i) sum##i *= scale;
	ALL(SCALED)
#endif
#define END(i) \
	if (r0 + i < rows) \
		store16(y + (long)(r0 + i) * y_ld, sum##i, bias, biased, column, n, notes, refusals, r0 + i, \
			RESULT_STEP);
	ALL(END)
}
#endif

#if defined TILE && defined U8
// The same for rows of 8-bit codes: products of 16-bit numbers, added in pairs, which CPUs have an instruction for.
// Compilers do not find it by themselves; where the device's compiler offers it, it is asked for.

int8 multiply_pairs(short16 a, short16 b) {
#ifdef __has_builtin
#if defined __AVX2__ && __has_builtin(__builtin_ia32_pmaddwd256)
	typedef short sixteen __attribute__((__vector_size__(32)));
	return __builtin_astype(__builtin_ia32_pmaddwd256(__builtin_astype(a, sixteen), __builtin_astype(b, sixteen)), int8);
#else
#define PAIRS
#endif
#else
#define PAIRS
#endif
#ifdef PAIRS
	int16 products = convert_int16(a) * convert_int16(b);
	return products.even + products.odd;
#endif
}

// codes4 are four codes of a row, four times; those beyond it stand for zero.
short16 codes4(__global const uchar *x, int p, int k) {
	uchar4 v = 128;
	if (p + 4 <= k)
		v = vload4(0, x + p);
	else {
		v.x = x[p];
		if (p + 1 < k)
			v.y = x[p + 1];
		if (p + 2 < k)
			v.z = x[p + 2];
	}
	return convert_short16(as_uchar16((uint4)as_uint(v))) - (short)128;
}

// nibbles are the weights of four columns that lie in the low or in the high halves of 16 bytes.
short16 nibbles(uint4 words, int side) {
	return convert_short16(as_uchar16(words >> (uint4)(4 * side) & 0x0f0f0f0fu)) - (short)8;
}

int4 pairs(int8 v) { return v.even + v.odd; }

// BYTES: weights of 4 bits are multiplied as bytes, where the device's compiler offers that. Products of nibbles and codes,
// added in pairs, are less than 3,841 in magnitude, so that eight of them fit 16 bits.
#if defined Q4 && defined __has_builtin
#if defined __AVX2__ && __has_builtin(__builtin_ia32_pmaddubsw256)
#define BYTES
short16 multiply_bytes(uint8 nibbles, uint8 codes) {
	typedef char bytes __attribute__((__vector_size__(32)));
	return __builtin_astype(__builtin_ia32_pmaddubsw256(__builtin_astype(nibbles, bytes), __builtin_astype(codes, bytes)),
		short16);
}
#endif
#endif

#if ROWS == 1 || defined BYTES
// A single row is bound by reading the weight, which is fastest in one go, and both halves of a tile of 4-bit weights lie
// in the same bytes: the item of the first half computes the whole tile, and that of the second half nothing.

// word4 is four codes of a row; those beyond it stand for zero.
uint word4(__global const uchar *x, int p, int k) {
	if (p + 4 <= k)
		return as_uint(vload4(0, x + p));
	return x[p] | (p + 1 < k ? x[p + 1] : 128u) << 8 | (p + 2 < k ? x[p + 2] : 128u) << 16 | 128u << 24;
}

#define EACH_ROW(i) for (int i = 0; i < ROWS; i++)

__kernel void matmul(IN(x), IN(scale), IDS OUT(y), __global const uchar *weight, __global const float *bias, int biased,
	__global int *notes, int refusals, int k, int n, int tile_bytes, int first, int rows EXPERT_ARGUMENTS GRID_ARGUMENT) {
	CONST_ROWS(uchar, x); CONST_ROWS(float, scale); ROWS_OF(float, y);
	int r0 = first + (int)get_global_id(0) * ROWS, column = (int)get_global_id(1) * 16;
	if (column % 32)
		return;
	CHOOSE(uchar, ZERO32)
	__global const uchar *tile = weight + (long)(column / 32) * tile_bytes;
	__global const uchar *row[ROWS];
	float16 left[ROWS], right[ROWS];
	EACH_ROW(i) {
		row[i] = x + (long)INPUT_ROW(i) * x_ld;
		left[i] = right[i] = 0;
	}
#ifdef Q8C
	int8 sums[8]; // of four columns each
	for (int j = 0; j < 8; j++)
		sums[j] = 0;
	for (int p = 0; p < k; p += 4) {
		__global const char *codes = (__global const char *)tile + p * 32;
		short16 four = convert_short16(as_uchar16((uint4)word4(row[0], p, k))) - (short)128;
		for (int j = 0; j < 8; j++)
			sums[j] += multiply_pairs(convert_short16(vload16(j, codes)), four);
	}
	__global const float *factors = (__global const float *)(tile + (k + 3) / 4 * 128);
	left[0] = vload16(0, factors) * convert_float16((int16)(pairs(sums[0]), pairs(sums[1]), pairs(sums[2]), pairs(sums[3])));
	right[0] = vload16(1, factors) * convert_float16((int16)(pairs(sums[4]), pairs(sums[5]), pairs(sums[6]), pairs(sums[7])));
#else
	for (int from = 0; from < k; from += Q4) {
		__global const uchar *block = tile + (long)(from / Q4) * BLOCK;
		int16 low[ROWS], high[ROWS];
#ifdef BYTES
		int8 sums[ROWS][4]; // of eight columns each
		EACH_ROW(i)
			for (int j = 0; j < 4; j++)
				sums[i][j] = 0;
		for (int begin = from; begin < min(k, from + Q4); begin += 32) {
			short16 parts[ROWS][4], eights[ROWS];
			EACH_ROW(i) {
				eights[i] = 0;
				for (int j = 0; j < 4; j++)
					parts[i][j] = 0;
			}
			for (int p = begin; p < min(k, begin + 32); p += 4) {
				__global const uint *words = (__global const uint *)block + (p - from) * 4;
				uint8 first8 = vload8(0, words), last8 = vload8(1, words);
				uint8 nibbles0 = first8 & 0x0f0f0f0fu, nibbles1 = last8 & 0x0f0f0f0fu;
				uint8 nibbles2 = first8 >> 4 & 0x0f0f0f0fu, nibbles3 = last8 >> 4 & 0x0f0f0f0fu;
				EACH_ROW(i) {
					uint8 four = word4(row[i], p, k) ^ 0x80808080u;
					eights[i] += multiply_bytes((uint8)0x08080808u, four);
					parts[i][0] += multiply_bytes(nibbles0, four);
					parts[i][1] += multiply_bytes(nibbles1, four);
					parts[i][2] += multiply_bytes(nibbles2, four);
					parts[i][3] += multiply_bytes(nibbles3, four);
				}
			}
			EACH_ROW(i)
				for (int j = 0; j < 4; j++)
					sums[i][j] += multiply_pairs(parts[i][j] - eights[i], (short16)1);
		}
		EACH_ROW(i) {
			low[i] = (int16)(sums[i][0], sums[i][1]);
			high[i] = (int16)(sums[i][2], sums[i][3]);
		}
#else
		int8 sums[8]; // of four columns each
		for (int j = 0; j < 8; j++)
			sums[j] = 0;
		for (int p = from; p < min(k, from + Q4); p += 4) {
			__global const uint *words = (__global const uint *)block + (p - from) * 4;
			short16 four = convert_short16(as_uchar16((uint4)word4(row[0], p, k))) - (short)128;
			for (int j = 0; j < 8; j++)
				sums[j] += multiply_pairs(nibbles(vload4(j % 4, words), j / 4), four);
		}
		low[0] = (int16)(pairs(sums[0]), pairs(sums[1]), pairs(sums[2]), pairs(sums[3]));
		high[0] = (int16)(pairs(sums[4]), pairs(sums[5]), pairs(sums[6]), pairs(sums[7]));
#endif
		float16 factor0 = vload_half16(0, (__global const half *)(block + 16 * Q4));
		float16 factor1 = vload_half16(1, (__global const half *)(block + 16 * Q4));
		EACH_ROW(i) {
			left[i] += factor0 * convert_float16(low[i]);
			right[i] += factor1 * convert_float16(high[i]);
		}
	}
#endif
	EACH_ROW(i) {
		if (r0 + i >= rows)
			break;
		__global float *to = y + (long)(r0 + i) * y_ld;
		float factor = scale[(long)INPUT_ROW(i) * scale_ld];
		store16(to, left[i] * factor, bias, biased, column, n, notes, refusals, r0 + i, RESULT_STEP);
		if (column + 16 < n)
			store16(to, right[i] * factor, bias, biased, column + 16, n, notes, refusals, r0 + i, RESULT_STEP);
	}
}
#else
__kernel void matmul(IN(x), IN(scale), IDS OUT(y), __global const uchar *weight, __global const float *bias, int biased,
	__global int *notes, int refusals, int k, int n, int tile_bytes, int first, int rows EXPERT_ARGUMENTS GRID_ARGUMENT) {
	CONST_ROWS(uchar, x); CONST_ROWS(float, scale); ROWS_OF(float, y);
	int r0 = first + (int)get_global_id(0) * ROWS, column = (int)get_global_id(1) * 16, side = column / 16 % 2;
	CHOOSE(uchar, ZERO16)
	__global const uchar *tile = weight + (long)(column / 32) * tile_bytes;
#define BEGIN(i) \
	__global const uchar *x##i = x + (long)INPUT_ROW(i) * x_ld; \
	float16 sum##i = 0; \
	int8 a##i = 0, b##i = 0, c##i = 0, d##i = 0;
	ALL(BEGIN)
	// Four rows of the weight and 16 columns are multiplied by four codes of each row: a quarter of the columns at a time,
	// so that the sums of all rows stay in registers.
#define CODES(i) short16 s##i = codes4(x##i, p, k);
#define INTO_A(i) a##i += multiply_pairs(w, s##i);
#define INTO_B(i) b##i += multiply_pairs(w, s##i);
#define INTO_C(i) c##i += multiply_pairs(w, s##i);
#define INTO_D(i) d##i += multiply_pairs(w, s##i);
#define QUARTER(weights, into) { short16 w = weights; ALL(into) }
#define MULTIPLY(weights) \
	ALL(CODES) \
	QUARTER(weights(0), INTO_A) QUARTER(weights(1), INTO_B) QUARTER(weights(2), INTO_C) QUARTER(weights(3), INTO_D)
#define COLLECT(i, factor) \
	sum##i += factor * convert_float16((int16)(pairs(a##i), pairs(b##i), pairs(c##i), pairs(d##i)));
#ifdef Q8C
	for (int p = 0; p < k; p += 4) {
		__global const char *codes = (__global const char *)tile + (p / 4 * 2 + side) * 64;
#define COLUMNS(quarter) convert_short16(vload16(quarter, codes))
		MULTIPLY(COLUMNS)
	}
	float16 factor = vload16(side, (__global const float *)(tile + (k + 3) / 4 * 128));
#define LAST(i) COLLECT(i, factor)
	ALL(LAST)
#else
	for (int from = 0; from < k; from += Q4) {
		__global const uchar *block = tile + (long)(from / Q4) * BLOCK;
		for (int p = from; p < min(k, from + Q4); p += 4) {
			__global const uint *codes = (__global const uint *)block + (p - from) / 4 * 16;
#define COLUMNS(quarter) nibbles(vload4(quarter, codes), side)
			MULTIPLY(COLUMNS)
		}
		float16 factor = vload_half16(side, (__global const half *)(block + 16 * Q4));
#define LAST(i) COLLECT(i, factor) a##i = 0; b##i = 0; c##i = 0; d##i = 0;
		ALL(LAST)
	}
#endif
#define END(i) \
	if (r0 + i < rows) \
		store16(y + (long)(r0 + i) * y_ld, sum##i * scale[(long)INPUT_ROW(i) * scale_ld], bias, biased, column, n, notes, \
			refusals, r0 + i, RESULT_STEP);
	ALL(END)
}
#endif
#endif

#ifdef COLUMN
// A group of 32 x SLICES items computes ROWS rows of a tile: neighbouring items read neighbouring columns, and slices
// divide the rows of the weight among them.

// A weight is words of 32 bits, read as an image of them or from memory.
#ifdef IMAGE
#define WEIGHT __read_only image1d_buffer_t weight
#define TILE_WORDS(tile_bytes) column / 32 * (tile_bytes / 4)
#define WORD(at) read_imageui(weight, tile + (at)).x
#else
#define WEIGHT __global const uint *weight
#define TILE_WORDS(tile_bytes) (long)(column / 32) * (tile_bytes / 4)
#define WORD(at) weight[tile + (at)]
#endif

// HALF_OF is one of the two 16-bit floats of a word.
float half_of(uint word, int which) {
	ushort narrow = word >> (16 * which);
	return vload_half(0, (const half *)&narrow);
}

// WEIGHTS4 are four weights of a column, without the scale of a column. Rows beyond k are zero.
#if defined W32
#define WEIGHTS4 as_float4((uint4)(WORD(32 * p + c), p + 1 < k ? WORD(32 * p + 32 + c) : 0, \
	p + 2 < k ? WORD(32 * p + 64 + c) : 0, p + 3 < k ? WORD(32 * p + 96 + c) : 0))
#elif defined W16
#define PAIR(i) (p + i < k ? WORD(16 * (p + i) + c % 16) : 0)
#define WEIGHTS4 brains(c / 16 ? (uint4)(PAIR(0), PAIR(1), PAIR(2), PAIR(3)) & 0xffff0000u : \
	(uint4)(PAIR(0), PAIR(1), PAIR(2), PAIR(3)) << 16)
float4 brains(uint4 words) {
	float4 v = as_float4(words);
#ifdef HALF
	ushort half_[4];
	vstore_half4_rte(v, 0, (half *)half_);
	v = vload_half4(0, (const half *)half_);
#endif
	return v;
}
#elif defined Q8C
#define WEIGHTS4 convert_float4(as_char4(WORD(p / 4 * 32 + c)))
#elif defined Q4C
#define WEIGHTS4 (convert_float4(as_char4(WORD(p / 4 * 16 + c % 16) >> (4 * (c / 16)) & 0x0f0f0f0fu)) - 8.0f)
#else
#define WORDS (BLOCK / 4)
#define NIBBLES(row) (WORD((row) / Q4 * WORDS + (row) % Q4 / 4 * 16 + c % 16) >> (4 * (c / 16)) & 0x0f0f0f0fu)
#define BLOCK_SCALE(row) half_of(WORD((row) / Q4 * WORDS + 4 * Q4 + c / 2), c % 2)
#define WEIGHTS4 ((convert_float4(as_char4(NIBBLES(p))) - 8.0f) * BLOCK_SCALE(p))
#endif

float4 floats4(__global const float *x, int p, int k) {
	return (float4)(x[p], p + 1 < k ? x[p + 1] : 0, p + 2 < k ? x[p + 2] : 0, p + 3 < k ? x[p + 3] : 0);
}

// packed4 are four codes of a row in a word; those beyond it stand for zero.
uint packed4(__global const uchar *x, int p, int k) {
	return x[p] | (p + 1 < k ? x[p + 1] : 128u) << 8 | (p + 2 < k ? x[p + 2] : 128u) << 16 |
		(p + 3 < k ? x[p + 3] : 128u) << 24;
}

// dot4 is the sum of four products of codes and weights.
int dot4(uint codes, uint weights) {
#ifdef DOT
	return dot_4x8packed_us_int(codes, weights) - 128 * dot_4x8packed_us_int(0x01010101u, weights);
#else
	int4 products = (convert_int4(as_uchar4(codes)) - 128) * convert_int4(as_char4(weights));
	return products.x + products.y + products.z + products.w;
#endif
}

#ifdef U8
__kernel void matmul(IN(x), IN(scale), IDS OUT(y), WEIGHT, __global const float *bias, int biased,
	__global int *notes, int refusals, int k, int n, int tile_bytes, int first, int rows EXPERT_ARGUMENTS GRID_ARGUMENT) {
	CONST_ROWS(uchar, x); CONST_ROWS(float, scale); ROWS_OF(float, y);
#else
__kernel void matmul(IN(x), IDS OUT(y), WEIGHT, __global const float *bias, int biased,
	__global int *notes, int refusals, int k, int n, int tile_bytes, int first, int rows EXPERT_ARGUMENTS GRID_ARGUMENT) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
#endif
	__local float shared[SLICES * 32];
	int c = get_local_id(0), slice = get_local_id(2), r0 = first + (int)get_global_id(1) * ROWS;
	int column = get_global_id(0);
	CHOOSE(uint, ZERO1) // the same for all items of the group
#ifdef IMAGE
	int tile = TILE_WORDS(tile_bytes);
#else
	long tile = TILE_WORDS(tile_bytes);
#endif
#ifdef U8
#define BEGIN(i) __global const uchar *x##i = x + (long)INPUT_ROW(i) * x_ld; float sum##i = 0;
#else
#define BEGIN(i) __global const float *x##i = x + (long)INPUT_ROW(i) * x_ld; float sum##i = 0;
#endif
	ALL(BEGIN)
#ifndef U8
	for (int p = 4 * slice; p < k; p += 4 * SLICES) {
		float4 w = WEIGHTS4;
#define MULTIPLY(i) sum##i += dot(floats4(x##i, p, k), w);
		ALL(MULTIPLY)
	}
#elif defined Q8C
	// Sums of 32 rows are exact in a float, and those of all of them nearly so.
	for (int from = 32 * slice; from < k; from += 32 * SLICES) {
#define NONE(i) int part##i = 0;
		ALL(NONE)
		for (int p = from; p < min(k, from + 32); p += 4) {
			uint w = WORD(p / 4 * 32 + c);
#define MULTIPLY(i) part##i += dot4(packed4(x##i, p, k), w);
			ALL(MULTIPLY)
		}
#define COLLECT(i) sum##i += part##i;
		ALL(COLLECT)
	}
#else
	for (int from = Q4 * slice; from < k; from += Q4 * SLICES) {
#define NONE(i) int part##i = 0;
		ALL(NONE)
		for (int p = from; p < min(k, from + Q4); p += 4) {
			uint w = as_uint(as_char4(NIBBLES(p)) - (char)8);
#define MULTIPLY(i) part##i += dot4(packed4(x##i, p, k), w);
			ALL(MULTIPLY)
		}
		float factor = BLOCK_SCALE(from);
#define COLLECT(i) sum##i += factor * part##i;
		ALL(COLLECT)
	}
#endif
	float factor = 1;
#ifdef Q8C
	factor = as_float(WORD((k + 3) / 4 * 32 + c));
#elif defined Q4C
	factor = as_float(WORD((k + 31) / 32 * 128 + c));
#endif
	float added = biased && column < n ? bias[column] : 0;
	// Slices are added in their order.
#ifdef U8
#define RESULT(i) (total * factor * scale[(long)INPUT_ROW(i) * scale_ld] + added)
#else
#define RESULT(i) (total * factor + added)
#endif
#ifdef HALF
#define ROUND(i) \
			ushort half_; \
			vstore_half_rte(total, 0, (half *)&half_); \
			total = vload_half(0, (const half *)&half_); \
			if (!isfinite(total)) \
				REFUSE(r0 + i);
#elif defined GRID
#define ROUND(i) \
			if (!isfinite(total)) \
				REFUSE(r0 + i); \
			total = to_grid(total, RESULT_STEP);
#else
#define ROUND(i)
#endif
#define END(i) \
	shared[slice * 32 + c] = sum##i; \
	barrier(CLK_LOCAL_MEM_FENCE); \
	if (slice == 0 && column < n && r0 + i < rows) { \
		float total = 0; \
		for (int other = 0; other < SLICES; other++) \
			total += shared[other * 32 + c]; \
		total = RESULT(i); \
		ROUND(i) \
		y[(long)(r0 + i) * y_ld + column] = total; \
	} \
	barrier(CLK_LOCAL_MEM_FENCE);
	ALL(END)
}
#endif
