// Call shapes for the tests of package native.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

uintptr_t add9(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f, uintptr_t g, uintptr_t h, uintptr_t i) {
  return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i;
}
void fill(uint64_t *out, uint64_t v) { *out = v; }
int64_t negative(void) { return -7; }
const char *greeting(void) { return "hello from C"; }
const char *nothing(void) { return 0; }
uintptr_t length(const char *s) { return strlen(s); }
static void *table[3] = {add9, fill, 0};
void **get_table(void) { return table; }
// call_back calls f n times with the numbers up to n and the user's data, and adds what it returns.
uintptr_t call_back(uintptr_t (*f)(uintptr_t, uintptr_t), uintptr_t n, uintptr_t user) {
  uintptr_t sum = 0;
  for (uintptr_t i = 0; i < n; i++) sum += f(i, user);
  return sum;
}
// wait_and_fill writes after having given others time to move the caller's stack.
void wait_and_fill(uint64_t *out, uint64_t v, uintptr_t turns) {
  for (volatile uintptr_t i = 0; i < turns; i++) {}
  *out = v;
}
