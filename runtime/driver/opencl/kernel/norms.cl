// Operators that reduce a row before they change it.

__kernel void norm(IN(x), OUT(y), __global const float *gain, int n, float eps) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
	SHARED
	long row = ROW;
	x += row * x_ld;
	y += row * y_ld;
	float8 wide = 0;
	float sum = 0;
	FOR_WIDE(j, n) {
		float8 v = vload8(0, x + j);
		wide += v * v;
	}
	FOR_REST(j, n) sum += x[j] * x[j];
	sum = SUM(sum + across(wide));
	float root = sqrt(sum / n + eps);
	float factor = root == 0 ? 0 : 1.0f / root;
	FOR_WIDE(j, n) vstore8(vload8(0, x + j) * factor * vload8(0, gain + j), 0, y + j);
	FOR_REST(j, n) y[j] = x[j] * factor * gain[j];
}

__kernel void layer_norm(IN(x), OUT(y), __global const float *gain, __global const float *bias, int n, float eps) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
	SHARED
	long row = ROW;
	x += row * x_ld;
	y += row * y_ld;
	float8 wide = 0;
	float sum = 0;
	FOR_WIDE(j, n) wide += vload8(0, x + j);
	FOR_REST(j, n) sum += x[j];
	float mean = SUM(sum + across(wide)) / n;
	wide = 0;
	sum = 0;
	FOR_WIDE(j, n) {
		float8 v = vload8(0, x + j) - mean;
		wide += v * v;
	}
	FOR_REST(j, n) sum += (x[j] - mean) * (x[j] - mean);
	sum = SUM(sum + across(wide));
	float root = sqrt(sum / n + eps);
	float factor = root == 0 ? 0 : 1.0f / root;
	FOR_WIDE(j, n) vstore8((vload8(0, x + j) - mean) * factor * vload8(0, gain + j) + vload8(0, bias + j), 0, y + j);
	FOR_REST(j, n) y[j] = (x[j] - mean) * factor * gain[j] + bias[j];
}

// codes writes a row as codes around 128, rounded to nearest, halves to even.
void codes(__global const float *x, __global uchar *y, int n, float scale, int lane, int lanes) {
	for (int j = lane; j < n; j += lanes) {
		float code = scale == 0 ? 0 : clamp(rint(x[j] / scale), -127.0f, 127.0f);
		y[j] = (uchar)(128 + (int)code);
	}
}

// magnitude is the largest magnitude of a row, or more than any finite number where it holds NaN or an infinity.
#define MAGNITUDE(top, x, n) \
	float top = 0; \
	for (int j = LANE; j < n; j += LANES) { \
		float size = fabs(x[j]); \
		top = size <= FLT_MAX ? fmax(top, size) : INFINITY; \
	} \
	top = TOP(top);

__kernel void quant_rows(IN(x), OUT(y), OUT(scale), __global int *notes, int refusals, int n) {
	CONST_ROWS(float, x); ROWS_OF(uchar, y); ROWS_OF(float, scale);
	SHARED
	long row = ROW;
	x += row * x_ld;
	MAGNITUDE(top, x, n)
	if (top > FLT_MAX) {
		if (LANE == 0)
			REFUSE(row);
		return;
	}
	float own = top / 127.0f;
	if (LANE == 0)
		scale[row * scale_ld] = own;
	codes(x, y + row * y_ld, n, own, LANE, LANES);
}

// quant_static takes the smallest of the static scales that covers a row, or the largest.
__kernel void quant_static(IN(x), OUT(y), OUT(scale), __global const float *scales, __global int *notes, int refusals,
	int n, int count) {
	CONST_ROWS(float, x); ROWS_OF(uchar, y); ROWS_OF(float, scale);
	SHARED
	long row = ROW;
	x += row * x_ld;
	MAGNITUDE(top, x, n)
	if (top > FLT_MAX) {
		if (LANE == 0)
			REFUSE(row);
		return;
	}
	float own = top / 127.0f, least = INFINITY, most = scales[0];
	for (int i = 0; i < count; i++) {
		most = fmax(most, scales[i]);
		if (scales[i] >= own)
			least = fmin(least, scales[i]);
	}
	own = fmin(least, most);
	if (LANE == 0)
		scale[row * scale_ld] = own;
	codes(x, y + row * y_ld, n, own, LANE, LANES);
}

// halve rounds a row to f16, for products whose activations are.
__kernel void halve(IN(x), OUT(y), __global int *notes, int refusals, int n) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
	SHARED
	long row = ROW;
	float top = 0;
	for (int j = LANE; j < n; j += LANES) {
		float value = x[row * x_ld + j];
		top = fabs(value) < 65520.0f ? top : 1;
		ushort narrow;
		vstore_half_rte(value, 0, (half *)&narrow);
		y[row * y_ld + j] = vload_half(0, (const half *)&narrow);
	}
	top = TOP(top);
	if (top > 0 && LANE == 0)
		REFUSE(row);
}

// on_grid rounds a row to multiples of the first of the steps, halves to even, at most 32767 of them, for products whose
// activations are.
__kernel void on_grid(IN(x), OUT(y), __global int *notes, int refusals, int n, __global const float *steps) {
	CONST_ROWS(float, x); ROWS_OF(float, y);
	SHARED
	long row = ROW;
	float top = 0;
	for (int j = LANE; j < n; j += LANES) {
		float value = x[row * x_ld + j];
		top = fabs(value) <= FLT_MAX ? top : 1;
		y[row * y_ld + j] = rint(clamp(value / steps[0], -32767.0f, 32767.0f)) * steps[0];
	}
	top = TOP(top);
	if (top > 0 && LANE == 0)
		REFUSE(row);
}
