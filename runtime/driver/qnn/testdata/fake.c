// Libraries that are not what they are called: a provider whose first call does what FAKE_* says, and a backend without
// interfaces or with one of another version.
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef FAKE_PROVIDER
void *CreateEpFactories(const char *name, void *base, void *logger, void **factories, size_t most, size_t *n) {
  printf("noise on standard output\n");
  fflush(stdout);
#ifdef FAKE_CRASH
  *(volatile int *)16 = 1;
#endif
#ifdef FAKE_ABORT
  fprintf(stderr, "the fake aborts\n");
  abort();
#endif
#ifdef FAKE_EXIT
  _exit(0);
#endif
#ifdef FAKE_HANG
  for (;;) sleep(1);
#endif
  *n = 0;
  return 0;
}
void *ReleaseEpFactory(void *f) { return 0; }
#endif

#ifdef FAKE_BACKEND
static struct { uint32_t id; const char *name; uint32_t core[3], backend[3]; void *functions[64]; } provider = {6, "fake", {2, 40, 0}, {4, 99, 0}};
static void *list[1] = {&provider};
uint64_t QnnInterface_getProviders(void ***out, uint32_t *n) {
#ifdef FAKE_NOTHING
  *n = 0;
  return 1;
#endif
  *out = list;
  *n = 1;
  return 0;
}
#endif
