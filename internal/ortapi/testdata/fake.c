// A table with the shape of ONNX Runtime's, whose functions check what they are given and count what
// they hand out. Compiled by the tests; FAKE_* select what is wrong with it.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION "1.28.0"
#endif

typedef struct { int code; char text[512]; } status;
typedef struct { const char *kind; } object;

static long live;      // objects handed out and not given back
static long calls;     // calls that can fail
static long fail_call; // the one that does
static char seen[8192]; // what arrived, one line per call

static void note(const char *s) {
  if (strlen(seen) + strlen(s) + 2 < sizeof seen) { strcat(seen, s); strcat(seen, "\n"); }
}
static status *fail(int code, const char *text) {
  status *s = malloc(sizeof *s);
  live++;
  s->code = code;
  snprintf(s->text, sizeof s->text, "%s", text);
  return s;
}
#define MAY_FAIL(name) do { if (++calls == fail_call) return fail(11, "asked to fail in " name); } while (0)
#define IS(o, k) (o && strcmp(((object *)o)->kind, k) == 0)
#define WANT(cond) do { if (!(cond)) return fail(2, "not true: " #cond); } while (0)

static object *make(const char *kind) { object *o = malloc(sizeof *o); o->kind = kind; live++; return o; }
static void release(object *o, const char *kind) {
  if (!IS(o, kind)) abort(); // a wrong release is found by the death of the process
  o->kind = "released";
  live--; // not freed: using it again is seen
}
#define RELEASE(name, kind) static void name(object *o) { release(o, kind); }

static int error_code(status *s) { return s->code; }
static const char *error_message(status *s) { return s->text; }
static void release_status(status *s) { free(s); live--; }

static status *threading(object **out) { MAY_FAIL("CreateThreadingOptions"); *out = make("threading"); return 0; }
RELEASE(release_threading, "threading")
static status *global_intra(object *o, int n) {
  MAY_FAIL("SetGlobalIntraOpNumThreads"); WANT(IS(o, "threading"));
  char b[64]; snprintf(b, sizeof b, "pool %d", n); note(b); return 0;
}
static status *global_inter(object *o, int n) { MAY_FAIL("SetGlobalInterOpNumThreads"); WANT(IS(o, "threading") && n == 1); return 0; }
static status *global_spin(object *o, int n) { MAY_FAIL("SetGlobalSpinControl"); WANT(IS(o, "threading") && n == 1); return 0; }
static status *global_affinity(object *o, const char *s) {
  MAY_FAIL("SetGlobalIntraOpThreadAffinity"); WANT(IS(o, "threading"));
  char b[64]; snprintf(b, sizeof b, "affinity %s", s); note(b); return 0;
}
static status *env(int level, const char *id, object *o, object **out) {
  MAY_FAIL("CreateEnvWithGlobalThreadPools"); WANT(level == 4 && strcmp(id, "hetc") == 0 && IS(o, "threading"));
  *out = make("env"); return 0;
}
RELEASE(release_env, "env")
static status *no_telemetry(object *e) { MAY_FAIL("DisableTelemetryEvents"); WANT(IS(e, "env")); return 0; }
static status *memory_info(int a, int t, object **out) { MAY_FAIL("CreateCpuMemoryInfo"); WANT((a == 0 || a == 1) && t == 0); *out = make(a ? "arena memory" : "memory"); return 0; }
static void release_memory(object *o) { release(o, IS(o, "memory") ? "memory" : "arena memory"); }
static status *arena_config(size_t most, int grow, int first, int dead, object **out) {
  MAY_FAIL("CreateArenaCfg"); WANT(most == 0 && grow == 1 && first == -1 && dead == -1); *out = make("arena config"); return 0;
}
RELEASE(release_arena_config, "arena config")
static status *arena(object *e, object *m, object *c) {
  MAY_FAIL("CreateAndRegisterAllocator"); WANT(IS(e, "env") && IS(m, "arena memory") && IS(c, "arena config")); note("arena"); return 0;
}
static status *tensor(object *m, void *p, size_t n, const int64_t *dims, size_t rank, int type, object **out) {
  MAY_FAIL("CreateTensorWithDataAsOrtValue"); WANT(IS(m, "memory"));
  char b[128]; int k = snprintf(b, sizeof b, "tensor type %d bytes %zu first %d dims", type, n, n ? *(unsigned char *)p : -1);
  for (size_t i = 0; i < rank; i++) k += snprintf(b + k, sizeof b - k, " %lld", (long long)dims[i]);
  note(b); *out = make("value"); return 0;
}
RELEASE(release_value, "value")
static status *prepacked(object **out) { MAY_FAIL("CreatePrepackedWeightsContainer"); *out = make("prepacked"); return 0; }
RELEASE(release_prepacked, "prepacked")

static status *options(object **out) { MAY_FAIL("CreateSessionOptions"); *out = make("options"); return 0; }
RELEASE(release_options, "options")
static status *mode(object *o, int m) { MAY_FAIL("SetSessionExecutionMode"); WANT(IS(o, "options") && m == 0); return 0; }
static status *no_pattern(object *o) { MAY_FAIL("DisableMemPattern"); WANT(IS(o, "options")); return 0; }
static status *no_arena(object *o) { MAY_FAIL("DisableCpuMemArena"); WANT(IS(o, "options")); return 0; }
static status *level(object *o, int n) { MAY_FAIL("SetSessionGraphOptimizationLevel"); WANT(IS(o, "options")); char b[32]; snprintf(b, sizeof b, "level %d", n); note(b); return 0; }
static status *intra(object *o, int n) { MAY_FAIL("SetIntraOpNumThreads"); WANT(IS(o, "options")); char b[32]; snprintf(b, sizeof b, "threads %d", n); note(b); return 0; }
static status *inter(object *o, int n) { MAY_FAIL("SetInterOpNumThreads"); WANT(IS(o, "options") && n == 1); return 0; }
static status *shared_pool(object *o) { MAY_FAIL("DisablePerSessionThreads"); WANT(IS(o, "options")); note("shared pool"); return 0; }
static status *config(object *o, const char *k, const char *v) {
  MAY_FAIL("AddSessionConfigEntry"); WANT(IS(o, "options"));
  char b[256]; snprintf(b, sizeof b, "config %s=%s", k, v); note(b); return 0;
}
static status *optimized(object *o, const char *p) { MAY_FAIL("SetOptimizedModelFilePath"); WANT(IS(o, "options")); char b[256]; snprintf(b, sizeof b, "optimized %s", p); note(b); return 0; }
static status *provider(object *o, const char *name, const char *const *k, const char *const *v, size_t n) {
  MAY_FAIL("SessionOptionsAppendExecutionProvider"); WANT(IS(o, "options"));
  char b[512]; int j = snprintf(b, sizeof b, "provider %s", name);
  for (size_t i = 0; i < n; i++) j += snprintf(b + j, sizeof b - j, " %s=%s", k[i], v[i]);
  note(b); return 0;
}
static status *own_options(object **out) { MAY_FAIL("CreateCUDAProviderOptions"); *out = make("own options"); return 0; }
static status *own_update(object *p, const char *const *k, const char *const *v, size_t n) {
  MAY_FAIL("UpdateCUDAProviderOptions"); WANT(IS(p, "own options"));
  for (size_t i = 0; i < n; i++) { char b[128]; snprintf(b, sizeof b, "own %s=%s", k[i], v[i]); note(b); }
  return 0;
}
static status *own_append(object *o, object *p) { MAY_FAIL("AppendExecutionProvider_CUDA_V2"); WANT(IS(o, "options") && IS(p, "own options")); note("own provider"); return 0; }
RELEASE(release_own, "own options")
static status *initializer(object *o, const char *name, object *v) {
  MAY_FAIL("AddInitializer"); WANT(IS(o, "options") && IS(v, "value"));
  char b[128]; snprintf(b, sizeof b, "initializer %s", name); note(b); return 0;
}
static status *session_prepacked(object *e, const char *m, size_t n, object *o, object *w, object **out) {
  MAY_FAIL("CreateSessionFromArrayWithPrepackedWeightsContainer"); WANT(IS(e, "env") && IS(o, "options") && IS(w, "prepacked"));
  char b[256]; snprintf(b, sizeof b, "model %.*s prepacked", (int)n, m); note(b); *out = make("session"); return 0;
}
static status *session(object *e, const char *m, size_t n, object *o, object **out) {
  MAY_FAIL("CreateSessionFromArray"); WANT(IS(e, "env") && IS(o, "options"));
  char b[256]; snprintf(b, sizeof b, "model %.*s", (int)n, m); note(b); *out = make("session"); return 0;
}
static status *session_file(object *e, const char *p, object *o, object **out) {
  MAY_FAIL("CreateSession"); WANT(IS(e, "env") && IS(o, "options"));
  char b[256]; snprintf(b, sizeof b, "model file %s", p); note(b); *out = make("session"); return 0;
}
static status *session_file_prepacked(object *e, const char *p, object *o, object *w, object **out) {
  MAY_FAIL("CreateSessionWithPrepackedWeightsContainer"); WANT(IS(e, "env") && IS(o, "options") && IS(w, "prepacked"));
  char b[256]; snprintf(b, sizeof b, "model file %s prepacked", p); note(b); *out = make("session"); return 0;
}
RELEASE(release_session, "session")
static status *count2(object *s, size_t *out) { MAY_FAIL("SessionGetInputCount"); WANT(IS(s, "session")); *out = 2; return 0; }
static status *count1(object *s, size_t *out) { MAY_FAIL("SessionGetOutputCount"); WANT(IS(s, "session")); *out = 1; return 0; }
static object allocator = {"allocator"};
static status *default_allocator(object **out) { MAY_FAIL("GetAllocatorWithDefaultOptions"); *out = &allocator; return 0; }
static status *io_name(object *s, size_t i, object *a, char **out) {
  MAY_FAIL("SessionGetName"); WANT(IS(s, "session") && IS(a, "allocator"));
  *out = malloc(16); live++; snprintf(*out, 16, "v%zu", i); return 0;
}
static status *allocator_free(object *a, void *p) { free(p); live--; MAY_FAIL("AllocatorFree"); WANT(IS(a, "allocator")); return 0; }
static status *io_type(object *s, size_t i, object **out) { MAY_FAIL("SessionGetTypeInfo"); WANT(IS(s, "session")); *out = make(i == 1 ? "no tensor" : "type"); return 0; }
static void release_type(object *o) { release(o, o->kind); }
static object info = {"tensor info"};
static status *cast(object *t, object **out) { MAY_FAIL("CastTypeInfoToTensorInfo"); *out = IS(t, "type") ? &info : 0; return 0; }
static status *element(object *i, int32_t *out) { MAY_FAIL("GetTensorElementType"); WANT(IS(i, "tensor info")); *out = 10; return 0; }
static status *rank(object *i, size_t *out) { MAY_FAIL("GetDimensionsCount"); WANT(IS(i, "tensor info")); *out = 2; return 0; }
static status *dims(object *i, int64_t *out, size_t n) { MAY_FAIL("GetDimensions"); WANT(IS(i, "tensor info") && n == 2); out[0] = -1; out[1] = 3000000000LL; return 0; }
static status *binding(object *s, object **out) { MAY_FAIL("CreateIoBinding"); WANT(IS(s, "session")); *out = make("binding"); return 0; }
RELEASE(release_binding, "binding")
static status *bind_in(object *b, const char *n, object *v) { MAY_FAIL("BindInput"); WANT(IS(b, "binding") && IS(v, "value")); char t[64]; snprintf(t, sizeof t, "in %s", n); note(t); return 0; }
static status *bind_out(object *b, const char *n, object *v) { MAY_FAIL("BindOutput"); WANT(IS(b, "binding") && IS(v, "value")); char t[64]; snprintf(t, sizeof t, "out %s", n); note(t); return 0; }
static status *run(object *s, object *o, object *b) { MAY_FAIL("RunWithBinding"); WANT(IS(s, "session") && o == 0 && IS(b, "binding")); return 0; }

static char *names[] = {"OneExecutionProvider", "Two\nExecutionProvider"};
static status *providers(char ***out, int *n) { MAY_FAIL("GetAvailableProviders"); *out = names; *n = 2; live++; return 0; }
static status *release_providers(char **p, int n) { live--; MAY_FAIL("ReleaseAvailableProviders"); WANT(p == names && n == 2); return 0; }
static const char *build_info(void) { return "a build\nfor tests"; }

// Plugin execution providers: two devices, of which the second is of "FakeExecutionProvider" once it is registered.
static int registered;
static object devices[2] = {{"device"}, {"device"}};
static object *device_list[2] = {&devices[0], &devices[1]};
static object metadata = {"pairs"};
static status *register_provider(object *e, const char *name, const char *path) {
  MAY_FAIL("RegisterExecutionProviderLibrary"); WANT(IS(e, "env"));
  char b[256]; snprintf(b, sizeof b, "register %s %s", name, path); note(b); registered = 1; return 0;
}
static status *list_devices(object *e, object ***out, size_t *n) {
  MAY_FAIL("GetEpDevices"); WANT(IS(e, "env"));
#ifdef FAKE_MANY
  *n = 1 << 30; *out = device_list; return 0;
#endif
  *out = device_list; *n = registered ? 2 : 1; return 0;
}
static const char *device_provider(object *d) { return d == &devices[1] ? "FakeExecutionProvider" : "CPUExecutionProvider"; }
static const char *device_vendor(object *d) { return d == &devices[1] ? "Fake\nCompany" : 0; }
static object *device_metadata(object *d) { return d == &devices[1] ? &metadata : 0; }
static const char *get_value(object *p, const char *key) { return IS(p, "pairs") && strcmp(key, "version") == 0 ? "1.2.3" : 0; }
static status *append_devices(object *o, object *e, object *const *d, size_t n, const char *const *k, const char *const *v, size_t nk) {
  MAY_FAIL("SessionOptionsAppendExecutionProvider_V2"); WANT(IS(o, "options") && IS(e, "env") && n == 1 && d[0] == &devices[1]);
  char b[512]; int j = snprintf(b, sizeof b, "devices");
  for (size_t i = 0; i < nk; i++) j += snprintf(b + j, sizeof b - j, " %s=%s", k[i], v[i]);
  note(b); return 0;
}
static status *compatibility(object *const *d, size_t n, const char *info, int32_t *out) {
  MAY_FAIL("GetModelCompatibilityForEpDevices"); WANT(n == 1 && d[0] == &devices[1]);
  *out = strcmp(info, "good") == 0 ? 1 : 3; return 0;
}
static object graphs[2] = {{"subgraph"}, {"subgraph"}}, nodes[1] = {{"node"}};
static object *graph_list[2] = {&graphs[0], &graphs[1]}, *node_list[1] = {&nodes[0]};
static status *placement(object *s, object ***out, size_t *n) { MAY_FAIL("Session_GetEpGraphAssignmentInfo"); WANT(IS(s, "session")); *out = graph_list; *n = 2; return 0; }
static status *graph_provider(object *g, const char **out) { MAY_FAIL("EpAssignedSubgraph_GetEpName"); WANT(IS(g, "subgraph")); *out = g == &graphs[0] ? "FakeExecutionProvider" : "CPUExecutionProvider"; return 0; }
static status *graph_nodes(object *g, object ***out, size_t *n) { MAY_FAIL("EpAssignedSubgraph_GetNodes"); WANT(IS(g, "subgraph")); *out = node_list; *n = 1; return 0; }
static status *node_name(object *o, const char **out) { MAY_FAIL("EpAssignedNode_GetName"); WANT(IS(o, "node")); *out = "n0"; return 0; }
static status *node_domain(object *o, const char **out) { MAY_FAIL("EpAssignedNode_GetDomain"); WANT(IS(o, "node")); *out = "com.microsoft"; return 0; }
static status *node_op(object *o, const char **out) { MAY_FAIL("EpAssignedNode_GetOperatorType"); WANT(IS(o, "node")); *out = "EPContext"; return 0; }

static status *compile_options(object *e, object *o, object **out) { MAY_FAIL("CreateModelCompilationOptionsFromSessionOptions"); WANT(IS(e, "env") && IS(o, "options")); *out = make("compilation"); return 0; }
RELEASE(release_compilation, "compilation")
static status *compile_in(object *c, const char *p) { MAY_FAIL("SetInputModelPath"); WANT(IS(c, "compilation")); char b[128]; snprintf(b, sizeof b, "compile %s", p); note(b); return 0; }
static status *compile_out(object *c, const char *p) { MAY_FAIL("SetOutputModelPath"); WANT(IS(c, "compilation")); char b[128]; snprintf(b, sizeof b, "to %s", p); note(b); return 0; }
static status *compile_embed(object *c, _Bool on) { MAY_FAIL("SetEpContextEmbedMode"); WANT(IS(c, "compilation")); note(on ? "embedded" : "beside"); return 0; }
static status *compile_flags(object *c, uint32_t f) { MAY_FAIL("SetFlags"); WANT(IS(c, "compilation") && f == 1); return 0; }
static status *compile_model(object *e, object *c) { MAY_FAIL("CompileModel"); WANT(IS(e, "env") && IS(c, "compilation")); note("compiled"); return 0; }
static void *compile_table[16];
static const void *compile_api(void) {
#ifdef FAKE_NO_COMPILER
  return 0;
#endif
  compile_table[0] = release_compilation; compile_table[1] = compile_options; compile_table[2] = compile_in; compile_table[4] = compile_out;
  compile_table[7] = compile_embed; compile_table[8] = compile_model; compile_table[9] = compile_flags;
#ifdef FAKE_COMPILE_HOLE
  compile_table[FAKE_COMPILE_HOLE] = 0;
#endif
  return compile_table;
}

static void *table[420];
static const void *get_api(uint32_t v) {
#ifdef FAKE_NO_API
  return 0;
#endif
  if (v != 24) return 0;
  table[1] = error_code; table[2] = error_message; table[6] = no_telemetry; table[7] = session_file; table[8] = session;
  table[10] = options; table[11] = optimized; table[13] = mode; table[17] = no_pattern; table[19] = no_arena; table[23] = level;
  table[24] = intra; table[25] = inter; table[30] = count2; table[31] = count1; table[33] = io_type; table[34] = io_type;
  table[36] = io_name; table[37] = io_name; table[49] = tensor; table[55] = cast; table[60] = element; table[61] = rank;
  table[62] = dims; table[69] = memory_info; table[76] = allocator_free; table[78] = default_allocator; table[92] = release_env;
  table[93] = release_status; table[94] = release_memory; table[95] = release_session; table[96] = release_value;
  table[98] = release_type; table[100] = release_options; table[119] = env; table[120] = shared_pool; table[121] = threading;
  table[122] = release_threading; table[125] = providers; table[126] = release_providers; table[130] = config; table[133] = run;
  table[134] = binding; table[135] = release_binding; table[136] = bind_in; table[137] = bind_out; table[144] = arena; table[147] = global_intra;
  table[148] = global_inter; table[149] = global_spin; table[150] = initializer;
  table[156] = arena_config; table[157] = release_arena_config; table[166] = prepacked;
  table[167] = release_prepacked; table[168] = session_file_prepacked; table[169] = session_prepacked; table[216] = provider;
  int own[] = {170, 204, 220, 239}; // each: append, create, update, (as string), release
  for (int i = 0; i < 4; i++) {
    table[own[i]] = own_append; table[own[i] + 1] = own_options; table[own[i] + 2] = own_update; table[own[i] + 4] = release_own;
  }
  table[294] = compile_api; table[297] = get_value; table[301] = register_provider; table[303] = list_devices; table[304] = append_devices;
  table[312] = device_provider; table[313] = device_vendor; table[314] = device_metadata; table[388] = compatibility;
  table[407] = placement; table[408] = graph_provider; table[409] = graph_nodes; table[410] = node_name; table[411] = node_domain; table[412] = node_op;
  table[227] = global_affinity; table[254] = build_info;
#ifdef FAKE_HOLE
  table[FAKE_HOLE] = 0;
#endif
  return table;
}
static const char *get_version(void) { return FAKE_VERSION; }
static struct { const void *(*api)(uint32_t); const char *(*version)(void); } base = {get_api, get_version};

#ifndef FAKE_NO_SYMBOL
const void *OrtGetApiBase(void) {
#ifdef FAKE_NO_BASE
  return 0;
#endif
#ifdef FAKE_EMPTY_BASE
  base.api = 0;
#endif
  return &base;
}
#endif

long fake_live(void) { return live; }
long fake_calls(void) { return calls; }
void fake_fail(long call) { calls = 0; fail_call = call; seen[0] = 0; }
const char *fake_seen(void) { return seen; }
