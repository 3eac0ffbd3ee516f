package depcheck

// room is one line of the import policy. path is relative to the module, its last element may
// contain *. A room may import internal/diag, internal/unit, the rooms of may, and whatever
// those may import in turn; other modules only as listed in third.
type room struct {
	path  string
	may   []string
	third []string // prefixes of import paths
}

// everything in a row's may permits every room; only command lines have it.
const everything = "..."

const sysUnix = "golang.org/x/sys"

// helpers may be imported everywhere.
var helpers = []string{"internal/diag", "internal/strictjson", "internal/unit", "internal/wholefile"}

// table is section 3 of the design, bottom up. Where a row permits more, the reason stands beside it.
var table = []room{
	{path: "internal/diag"},
	{path: "internal/unit"},
	{path: "internal/strictjson"},
	{path: "internal/filelock"},
	{path: "internal/wholefile", may: []string{"internal/filelock"}},
	{path: "internal/decode", third: []string{"go.yaml.in/yaml/v3"}},
	{path: "internal/canon"},
	{path: "internal/child"},
	{path: "internal/openfiles"},
	{path: "internal/patience"},
	{path: "internal/pins"},
	{path: "internal/native", may: []string{"internal/pins"}, third: []string{"github.com/ebitengine/purego", sysUnix}},
	{path: "internal/affinity", third: []string{sysUnix}},
	{path: "internal/require", may: []string{"internal/native", "runtime/driver"}}, // native: the name of its variable; driver: a reason that no requirement overrides
	{path: "internal/mem", third: []string{sysUnix}},
	{path: "internal/shalanes", third: []string{sysUnix}},                     // sys: the features of the CPU
	{path: "internal/*api", may: []string{"internal/native", "internal/mem"}}, // mem: arrays of pointers that C reads,
	{path: "internal/cas", may: []string{"internal/filelock"}},
	{path: "internal/onnx", third: []string{"google.golang.org/protobuf/encoding/protowire"}},
	{path: "internal/golden"},
	{path: "internal/depcheck"},

	{path: "planir/op"},
	{path: "planir/op/optest", may: []string{"planir/op"}},
	{path: "planir/capability", may: []string{"planir/op"}},
	{path: "planir/source"},
	{path: "internal/number", may: []string{"planir/op"}},
	{path: "planir", may: []string{"planir/op", "planir/capability", "planir/source", "internal/canon"}},
	{path: "planir/plantext", may: []string{"planir", "internal/decode"}, third: []string{"go.yaml.in/yaml/v3"}}, // yaml: it writes steps one per line, which decode does not know about
	{path: "planir/calibration", may: []string{"planir/op", "internal/decode"}},
	{path: "socs", may: []string{"planir/op", "planir/capability", "internal/decode"}},
	{path: "socs/timeline"},
	{path: "models/safetensors", may: []string{"planir/op", "internal/mem", "internal/number"}}, // the file format alone, so that hetrun can write logits without linking models
	{path: "models/gguf", may: []string{"planir/op", "internal/mem", "internal/number"}},
	{path: "models/induction", may: []string{"models/safetensors", "planir/op", "internal/number"}},
	{path: "models", may: []string{"models/safetensors", "models/gguf", "planir/op", "internal/decode", "internal/mem"}},
	{path: "planir/pack", may: []string{"planir/op", "internal/number"}},
	{path: "planir/lower", may: []string{"planir", "planir/op", "models", "planir/pack"}},                         // pack: the sizes of packs
	{path: "planir/check", may: []string{"planir", "planir/op", "socs", "models", "planir/lower", "planir/pack"}}, // lower, pack: it lowers the decisions again and compares program and sizes
	{path: "planir/moves", may: []string{"planir"}},
	{path: "planir/prefix", may: []string{"planir"}},
	{path: "planir/bundle", may: []string{"internal/mem", "internal/shalanes"}},
	{path: "planir/bundle/bundletest", may: []string{"planir/bundle"}},

	{path: "profiler/stat"},
	{path: "profiler/record", may: []string{"planir/op", "internal/decode", "internal/filelock", "profiler/stat"}},
	{path: "profiler/imported", may: []string{"profiler/record", "planir/op", "socs", "internal/decode"}},
	{path: "roofline", may: []string{"planir/op", "planir/source", "profiler/record", "profiler/stat", "socs", "socs/timeline", "internal/decode"}},

	{path: "runtime/driver", may: []string{"planir/op", "planir/capability", "internal/mem", "internal/canon"}},                  // canon: graphs in artifacts have one spelling
	{path: "runtime/driver/drivertest", may: []string{"runtime/driver", "planir/pack", "internal/patience", "internal/require"}}, // pack: its weights are packed ones
	{path: "runtime/driver/host/kernel/gen", third: []string{"github.com/mmcloughlin/avo"}},                                      // writes the kernels, linked by nothing
	{path: "runtime/driver/host/kernel", may: []string{"planir/op", "planir/pack", "internal/mem"}, third: []string{sysUnix, "github.com/klauspost/cpuid/v2"}},
	{path: "runtime/driver/host", may: []string{"runtime/driver", "planir/pack", "runtime/driver/host/kernel", "internal/affinity"}, third: []string{"github.com/klauspost/cpuid/v2"}},
	{path: "runtime/driver/scores", may: []string{"runtime/driver", "planir/op", "internal/mem", "internal/number"}},
	{path: "runtime/driver/ort", may: []string{"runtime/driver", "runtime/driver/scores", "planir/pack", "internal/ortapi", "internal/affinity", "internal/onnx"}},    // onnx: what an artifact computes is checked; cas: prepacked weights,
	{path: "runtime/driver/qnn", may: []string{"runtime/driver", "runtime/driver/scores", "internal/ortapi", "internal/onnx", "internal/child", "internal/patience"}}, // onnx: what an artifact computes is checked
	{path: "runtime/driver/opencl/kernel", may: []string{"planir/op", "planir/pack"}},
	{path: "runtime/driver/opencl", may: []string{"runtime/driver", "planir/pack", "runtime/driver/opencl/kernel", "internal/clapi", "internal/affinity"}},
	{path: "runtime/driver/sim", may: []string{"runtime/driver", "runtime/driver/host", "socs", "socs/timeline"}},
	{path: "runtime/driver/all", may: []string{"runtime/driver/host", "runtime/driver/ort", "runtime/driver/opencl", "runtime/driver/qnn"}},
	{path: "runtime/selftest", may: []string{"planir", "planir/op", "runtime/driver", "internal/number"}},
	{path: "runtime/executor", may: []string{"planir", "planir/moves", "planir/op", "planir/capability", "runtime/driver", "runtime/selftest", "internal/mem", "planir/pack"}, third: []string{sysUnix}}, // pack: the byte range of a shard's tiles
	{path: "runtime/programs", may: []string{"runtime/driver", "internal/cas"}},
	{path: "runtime/tokenizer/jinja"},
	{path: "runtime/tokenizer", may: []string{"runtime/tokenizer/jinja"}},
	{path: "runtime/scheduler"},
	{path: "runtime/serving", may: []string{"runtime/executor", "runtime/scheduler", "planir", "planir/prefix"}},
	{path: "runtime/quality", may: []string{"runtime/executor", "planir/op", "planir/calibration"}},

	// pack and mem: weights of a measurement are made here, in the layout the processor reads.
	{path: "profiler", may: []string{"profiler/record", "profiler/stat", "planir/op", "socs", "models", "runtime/driver", "runtime/executor", "planir/capability", "planir/pack", "internal/mem", "internal/affinity"}, third: []string{sysUnix}},

	{path: "solver/milp"},
	{path: "solver/problem", may: []string{"solver/milp"}},
	{path: "solver/exact", may: []string{"solver/problem"}},
	{path: "solver/highs", may: []string{"solver/milp", "internal/native", "internal/child"}, third: []string{"github.com/tetratelabs/wazero"}},
	{path: "solver/workload", may: []string{"solver/problem", "planir/op", "models", "socs", "internal/decode"}},
	{path: "solver/price", may: []string{"solver/problem", "solver/workload", "planir", "planir/capability", "planir/source", "planir/check", "planir/lower", "planir/op", "socs", "socs/timeline", "roofline", "profiler/record"}},
	{path: "solver/order"},
	{path: "solver", may: []string{"solver/order", "solver/problem", "solver/workload", "solver/price", "planir", "planir/capability", "planir/moves", "planir/source", "planir/calibration", "planir/lower", "planir/check", "planir/op", "socs", "socs/timeline", "models", "roofline", "profiler/record"}},
	{path: "solver/explain", may: []string{"solver", "solver/problem", "solver/workload", "solver/price", "planir", "planir/check", "planir/op", "socs"}},

	{path: "emit", may: []string{"planir", "planir/calibration", "planir/lower", "planir/check", "planir/pack", "planir/bundle", "planir/op", "socs", "models", "runtime/driver", "runtime/selftest", "runtime/programs", "internal/child"}}, // selftest, programs: what a bundle carries for them
	{path: "emit/onnxgraph", may: []string{"planir/op", "internal/onnx"}},
	{path: "emit/compile/*", may: []string{"emit/onnxgraph", "runtime/driver", "planir/op", "planir/pack", "internal/child", "internal/patience", "internal/onnx", "internal/cas", "internal/ortapi", "internal/qnnapi", "runtime/driver/opencl/kernel"}},

	{path: "cmd/internal/served", may: []string{"runtime/serving"}, third: []string{"github.com/prometheus/client_golang", "github.com/prometheus/common"}},
	{path: "cmd/internal/httpapi", may: []string{"cmd/internal/served", "runtime/serving", "runtime/tokenizer"}, third: []string{"github.com/prometheus/client_golang"}},
	{path: "cmd/internal/servecmd", may: []string{"cmd/internal/*", "runtime/serving", "runtime/driver"}, third: []string{"github.com/spf13/cobra", "golang.org/x/net"}},
	{path: "cmd/internal/*", may: []string{everything}, third: commandLine},
	{path: "cmd/hetc", may: []string{everything}, third: []string{"github.com/spf13/cobra"}},
	{path: "cmd/hetserve", may: []string{"cmd/internal/*", "runtime/driver/all"}, third: []string{"github.com/spf13/cobra"}},
	{path: "cmd/hetrun", may: []string{"cmd/internal/*", "runtime/driver/all"}, third: []string{"github.com/spf13/cobra"}},
}

// commandLine are the modules for talking to people; they stay out of every other room.
var commandLine = []string{
	"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/olekukonko/tablewriter",
	"golang.org/x/term", sysUnix,
}

// cmdOnly are rooms that only command lines import: they bind implementations to interfaces.
var cmdOnly = []string{"runtime/driver/all", "runtime/driver/sim", "solver/highs", "solver/exact", "emit/compile/*"}

// hetrunNever are packages that hetrun must not link, with the reason.
var hetrunNever = map[string]string{
	"go.yaml.in/yaml/v3": "a device executes canonical JSON only",
	"gopkg.in/yaml.v2":   "a device executes canonical JSON only",
	"gopkg.in/yaml.v3":   "a device executes canonical JSON only",
	"net/http":           "the program that opens a bundle and ends has no network code; hetserve has",
	"testing":            "test code does not belong in a product",

	"internal/decode":    "a device executes canonical JSON only",
	"models":             "the executor knows operators, not models",
	"socs":               "the plan carries what legality needs",
	"profiler":           "the runtime evaluates no cost model",
	"roofline":           "the runtime evaluates no cost model",
	"solver":             "the runtime decides nothing it could have been told",
	"emit":               "the runtime neither compiles nor signs",
	"planir/lower":       "the bundle holds the finished program",
	"planir/plantext":    "a device executes canonical JSON only",
	"planir/calibration": "a device executes canonical JSON only",
	"planir/check":       "emit has checked the plan",
	"runtime/driver/sim": "simulated times never come from a device",
	"runtime/quality":    "quality is judged by hetc",

	"cmd/internal/papers": "papers are recomputed by hetc",
}

// call is a rule about functions of a standard package.
type call struct {
	pkg     string
	names   []string // "*" for all but allowed
	allowed []string // with "*": names that are always fine
	rooms   []string // where the calls are fine; a trailing / permits the rooms below
	reason  string
}

var calls = []call{
	{pkg: "time", names: []string{"Now", "Since", "Until"},
		rooms:  []string{"cmd/", "profiler", "runtime/", "solver/highs"},
		reason: "no clock value reaches a stored byte; pass a context or a stopwatch in"},
	{pkg: "math/rand", names: []string{"*"}, allowed: []string{"New", "NewSource", "NewZipf", "Rand", "Source", "Source64", "Zipf"},
		reason: "randomness is seeded: rand.New(rand.NewSource(seed))"},
	{pkg: "math/rand/v2", names: []string{"*"}, allowed: []string{"New", "NewPCG", "NewChaCha8", "NewZipf", "Rand", "Source", "PCG", "ChaCha8", "Zipf"},
		reason: "randomness is seeded: rand.New(rand.NewPCG(seed, 0))"},
	{pkg: "crypto/rand", names: []string{"*"}, rooms: []string{"cmd/hetc", "emit"},
		reason: "only keys are random"},
	{pkg: "crypto/ed25519", names: []string{"Sign", "GenerateKey", "NewKeyFromSeed", "PrivateKey"}, rooms: []string{"cmd/hetc", "emit"},
		reason: "signing stays out of the runtime"},
	{pkg: "crypto/ecdsa", names: []string{"Sign", "SignASN1", "GenerateKey", "PrivateKey"}, rooms: []string{"cmd/hetc", "emit"},
		reason: "signing stays out of the runtime"},
}

// importers are packages that only some rooms may import.
var importers = []struct {
	pkg    string
	rooms  []string
	reason string
}{
	{"unsafe", []string{"internal/mem", "internal/native", "internal/*api"}, "memory and foreign calls have one home"},
	{"C", nil, "no cgo"},
}

// badNames are package names that say nothing.
var badNames = []string{"util", "utils", "common", "helpers", "helper", "misc", "shared", "base", "lib"}
