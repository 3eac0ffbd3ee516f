package qnn

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/qnnapi"
)

// The compiler works in a process of its own, for three reasons: its output depends on what the process has compiled
// before and on the path that it is given; it prints; and it may crash or never return. The process starts in a folder
// made for it, and reads and writes files of fixed names there. Its input only tells it that its parent is still alive.

// workerArg is the first argument of that process. A program that offers this compiler calls Work when its process was
// started so.
const workerArg = "__qnn"

// Worker reports whether a process with these arguments, after its name, is one that the compiler started.
func Worker(args []string) bool { return len(args) == 1 && args[0] == workerArg }

// Names of files in the process's folder.
const (
	requestFile  = "request.json"
	answerFile   = "answer.json"
	progressFile = "progress" // the number of the graph that is worked on
	outFolder    = "out"
)

// Files of graph i: its model, what was compiled of it, and tensor k of its sample and of an engine's results.
func modelFile(i int) string               { return fmt.Sprintf("g%d.onnx", i) }
func contextFile(i int) string             { return filepath.Join(outFolder, modelFile(i)) }
func sampleFile(i, k int) string           { return fmt.Sprintf("g%d.in%d", i, k) }
func resultFile(i, k int, s string) string { return fmt.Sprintf("g%d.%s%d", i, s, k) }

// sharedFile is the binary of a group, as the library names it after the first graph.
const sharedFile = "g0_qnn.bin"

// request is the input of the process.
type request struct {
	ORT, Provider, Backend, System string      // libraries
	Options                        [][2]string // of the provider, for compiling
	Shared                         bool        // all graphs in one binary
	Memory                         int64       // bytes of address space, 0: no limit
	Graphs                         []task
}

// task is one graph: modelFile, and the tensors of a sample.
type task struct {
	Inputs, Outputs []tensor
	Sample          bool // it has one, which is to be executed
}

// tensor is an input or an output [Rows,Cols] of a model.
type tensor struct {
	Name       string
	Type       onnx.Type
	Rows, Cols int
}

// bytes returns the size of the tensor's data.
func (t tensor) bytes() int64 { return t.Type.Bytes(int64(t.Rows) * int64(t.Cols)) }

// answer is the output of the process.
type answer struct {
	Failed   *failure // nil: everything was made
	ORT      string   // versions
	Provider string
	SDK      string // "v2.51.0.260929181845"
	Arch     int64  // that the binary is for, as is SoC
	SoC      int64
	Graphs   []facts // in the order of the request
}

// failure is the reason why there is no answer.
type failure struct {
	Class   diag.Class
	Graph   int // -1: none in particular
	Summary string
}

// facts are what the compiler reports of a graph.
type facts struct {
	Spill, VTCM int64  // bytes
	Nodes, Edge int64  // of the compiled model: all, and those of them that only convert at its edges
	Context     int64  // bytes of the binary that holds the graph, with others or alone
	Token       string // the vendor's compatibility string
}

// maxTensor bounds a tensor of a sample, in bytes.
const maxTensor = 1 << 34

// readRequest reads the input of the process. The process that writes it may have been killed half-way.
func readRequest(b []byte) (*request, error) {
	asked := &request{}
	if err := json.Unmarshal(b, asked); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	if len(asked.Graphs) == 0 || asked.Memory < 0 {
		return nil, fmt.Errorf(
			"read the request: %d graphs and %d bytes of memory, want a graph and no negative number",
			len(asked.Graphs), asked.Memory)
	}
	for i, graph := range asked.Graphs {
		for _, tensor := range slices.Concat(graph.Inputs, graph.Outputs) {
			rows, cols := tensor.Rows, tensor.Cols
			bounded := 1 <= rows && rows <= maxTensor && 1 <= cols && cols <= maxTensor/rows
			if !bounded || tensor.bytes() < 1 || tensor.bytes() > maxTensor {
				return nil, fmt.Errorf("read the request: tensor %q of graph %d is [%d,%d] of type %d",
					tensor.Name, i, tensor.Rows, tensor.Cols, tensor.Type)
			}
		}
	}
	return asked, nil
}

// readAnswer reads the output of the process for that many graphs. A library that went wrong may have overwritten it.
func readAnswer(b []byte, graphs int) (*answer, error) {
	said := &answer{}
	if err := json.Unmarshal(b, said); err != nil {
		return nil, err
	}
	if said.Failed == nil && len(said.Graphs) != graphs {
		return nil, fmt.Errorf("it tells of %d graphs, want %d", len(said.Graphs), graphs)
	}
	return said, nil
}

// Work does all that this process is for. in ends when the parent does; dir is the process's folder.
func Work(dir string, in io.Reader) error {
	debug.SetTraceback("none") // of a library that crashes it says nothing
	// The parent holds the other end of in for as long as it lives.
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(int(diag.ClassInterrupted))
	}()
	if err := os.Chdir(dir); err != nil {
		return err
	}
	text, err := os.ReadFile(requestFile)
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	asked, err := readRequest(text)
	if err != nil {
		return err
	}
	if err := limitMemory(asked.Memory); err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	w := &worker{request: asked, graph: -1}
	reply := &w.reply
	if err := w.work(); err != nil {
		class := diag.ClassOf(err)
		if class == diag.ClassInternal {
			class = diag.ClassRun
		}
		reply = &answer{Failed: &failure{class, w.graph, err.Error()}}
	}
	if text, err = json.Marshal(reply); err != nil {
		return err
	}
	return os.WriteFile(answerFile, text, 0o600)
}

// worker compiles the graphs of a request and runs their samples. Nothing is closed: the process ends.
type worker struct {
	*request
	env     *ortapi.Env
	devices []ortapi.Device
	graph   int // that is worked on, -1 before the first
	reply   answer
}

// work does all parts of the request, one after the other, and stops at the first failure.
func (w *worker) work() error {
	for _, part := range []func() error{w.open, w.compile, w.inspect, w.tryAll} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// open loads the libraries and finds the vendor's device.
func (w *worker) open() error {
	lib, err := ortapi.Load(w.ORT)
	if err != nil {
		return err
	}
	if w.env, err = lib.NewEnv(ortapi.EnvOptions{Threads: 1}); err != nil {
		return err
	}
	if err := w.env.RegisterProvider(ortapi.QNNProvider, w.Provider); err != nil {
		return diag.New(diag.ClassUnavailable, "library %q: %w", w.Provider, err)
	}
	all, err := w.env.Devices()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(d ortapi.Device) bool { return d.Provider == ortapi.QNNProvider })
	if at < 0 {
		return diag.New(diag.ClassUnavailable, "library %q offers no device", w.Provider)
	}
	w.devices = all[at : at+1] // one device, whatever its hardware is called
	w.reply.ORT, w.reply.Provider = lib.Version, w.devices[0].Version
	return nil
}

// compile compiles the graphs, those of a shared binary one behind the other.
func (w *worker) compile() error {
	for i := range w.Graphs {
		if err := w.begin(i); err != nil {
			return err
		}
		session := &ortapi.SessionOptions{Threads: 1, Devices: w.devices}
		session.ProviderOptions = append([][2]string{{"backend_path", w.Backend}}, w.Options...)
		if w.Shared {
			session.Config = append(session.Config, [2]string{"ep.share_ep_contexts", "1"})
			if i == len(w.Graphs)-1 {
				session.Config = append(session.Config, [2]string{"ep.stop_share_ep_contexts", "1"})
			}
		}
		what := ortapi.Compilation{Model: modelFile(i), Output: contextFile(i), Embed: !w.Shared}
		if err := w.env.Compile(what, session); err != nil {
			return err
		}
	}
	return nil
}

// inspect reads what was compiled, and the facts of it.
func (w *worker) inspect() (err error) {
	var binary []byte
	if w.Shared {
		if binary, err = os.ReadFile(filepath.Join(outFolder, sharedFile)); err != nil {
			return err
		}
	}
	var info *qnnapi.Context // of binary
	for i := range w.Graphs {
		w.graph = i
		code, err := os.ReadFile(contextFile(i))
		if err != nil {
			return err
		}
		wrapped, err := inspect(code, w.Shared)
		if err != nil {
			return err
		}
		if !w.Shared {
			binary = []byte(wrapped.context)
		}
		if info == nil || !w.Shared {
			if info, err = qnnapi.ReadContext(w.System, binary); err != nil {
				return err
			}
		}
		graph, ok := info.Graphs[wrapped.graph]
		if !ok {
			return diag.New(diag.ClassRun, "the binary has no graph %q, which the model refers to", wrapped.graph)
		}
		w.reply.Arch, w.reply.SoC, w.reply.SDK = info.Arch, info.SoC, wrapped.sdk
		w.reply.Graphs = append(w.reply.Graphs, facts{
			Spill: graph.SpillBytes, VTCM: graph.VTCMBytes, Nodes: wrapped.nodes, Edge: wrapped.edge,
			Context: int64(len(binary)), Token: wrapped.token,
		})
	}
	return nil
}

// tryAll runs the samples: what was compiled in the emulator, which needs no target as the binary is for one, and the
// uncompiled model on the CPU.
func (w *worker) tryAll() error {
	emulator := &ortapi.SessionOptions{Threads: 1, Devices: w.devices}
	emulator.ProviderOptions = [][2]string{{"backend_path", w.Backend}, {"offload_graph_io_quantization", "1"}}
	for i, task := range w.Graphs {
		if !task.Sample {
			continue
		}
		if err := w.begin(i); err != nil {
			return err
		}
		for _, engine := range []struct {
			name, model string
			session     *ortapi.SessionOptions
		}{
			{"emulated", contextFile(i), emulator},
			{"portable", modelFile(i), &ortapi.SessionOptions{Threads: 1}},
		} {
			results, err := task.run(w.env, engine.model, engine.session, i)
			if err == nil {
				err = writeResults(results, i, engine.name)
			}
			if err != nil {
				return diag.New(diag.ClassRun, "run %q on its sample: %w", engine.name, err)
			}
		}
	}
	return nil
}

// begin notes the graph that is worked on where the parent finds it after a crash.
func (w *worker) begin(i int) error {
	w.graph = i
	return os.WriteFile(progressFile, []byte(strconv.Itoa(i)), 0o600)
}

// run executes a model on the sample of graph i and returns its results, in memory that is not freed.
func (g *task) run(env *ortapi.Env, path string, o *ortapi.SessionOptions, i int) (results [][]byte, err error) {
	session, err := env.NewSessionFromFile(path, o)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	binding, err := session.NewBinding()
	if err != nil {
		return nil, err
	}
	defer binding.Close()
	for at, input := range g.Inputs {
		data, err := os.ReadFile(sampleFile(i, at))
		if err != nil {
			return nil, err
		}
		// Memory is never freed: the process ends after its one request.
		to, value, err := input.alloc(env)
		if err != nil {
			return nil, err
		}
		if len(data) != len(to) {
			return nil, diag.New(diag.ClassInput, "input %q of the sample has %d bytes, want %d",
				input.Name, len(data), len(to))
		}
		copy(to, data)
		if err := binding.BindInput(input.Name, value); err != nil {
			return nil, err
		}
	}
	for _, output := range g.Outputs {
		to, value, err := output.alloc(env)
		if err != nil {
			return nil, err
		}
		if err := binding.BindOutput(output.Name, value); err != nil {
			return nil, err
		}
		results = append(results, to)
	}
	return results, session.Run(binding)
}

// alloc returns memory of a tensor's size, and the tensor in it.
func (t tensor) alloc(env *ortapi.Env) ([]byte, *ortapi.Value, error) {
	region, err := mem.Alloc(int(t.bytes()), 64)
	if err != nil {
		return nil, nil, err
	}
	value, err := env.NewTensor(region.Bytes(), ortapi.ElementType(t.Type), []int64{int64(t.Rows), int64(t.Cols)})
	return region.Bytes(), value, err
}

// writeResults leaves the results of a sample where the parent reads them.
func writeResults(results [][]byte, i int, engine string) error {
	for at, result := range results {
		if err := os.WriteFile(resultFile(i, at, engine), result, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// wrapper is what a compiled model says.
type wrapper struct {
	graph   string // its name in the binary
	context string // the binary, or its file
	sdk     string // version of the compiler
	token   string // the vendor's compatibility string
	nodes   int64  // of the compiled model
	edge    int64  // of them that only convert at its edges
}

// tokenKey is the entry of a compiled model's metadata with the vendor's compatibility string.
const tokenKey = "ep_compatibility_info." + ortapi.QNNProvider

// edges are the operators that may stay on the CPU before and behind a compiled graph: they convert.
var edges = []string{"QuantizeLinear", "DequantizeLinear", "Cast"}

// inspect reads a compiled model and refuses one that is not wholly the NPU's: a provider hands what it does not take
// to the CPU, and says nothing.
func inspect(code []byte, shared bool) (*wrapper, error) {
	model, err := onnx.Read(code)
	if err != nil {
		return nil, err
	}
	wrapped := &wrapper{nodes: int64(len(model.Graph.Nodes))}
	var left []string
	var contexts []*onnx.Node
	for i := range model.Graph.Nodes {
		node := &model.Graph.Nodes[i]
		switch {
		case node.Op == "EPContext":
			contexts = append(contexts, node)
		case isEdge(node, model):
			wrapped.edge++
		default:
			left = append(left, node.Op)
		}
	}
	switch {
	case len(left) > 0:
		return nil, diag.New(diag.ClassInput, "the NPU does not take all of the graph: %s would stay on the CPU",
			strings.Join(left, ", "))
	case len(contexts) == 0:
		return nil, diag.New(diag.ClassInput, "the NPU takes nothing of the graph")
	case len(contexts) > 1:
		return nil, diag.New(diag.ClassInput, "the NPU takes the graph in %d pieces, with conversions between them",
			len(contexts))
	}
	wrapped.token, _ = model.Prop(tokenKey)
	return wrapped, wrapped.read(contexts[0], shared)
}

// read reads the node that stands for the binary, which it names where the binary is shared, and else holds.
func (w *wrapper) read(node *onnx.Node, shared bool) error {
	attr := func(name string) onnx.Attr { a, _ := node.Attr(name); return a }
	if w.graph = attr("partition_name").S; w.graph == "" {
		w.graph = node.Name
	}
	w.context, w.sdk = attr("ep_cache_context").S, attr("ep_sdk_version").S
	embedded := attr("embed_mode").I
	switch {
	case w.token == "":
		return diag.New(diag.ClassUnavailable,
			"the compiled model has no %s: the library is another one than hetc knows", tokenKey)
	case shared && (w.context != sharedFile || embedded != 0):
		return diag.New(diag.ClassRun, "the compiled model refers to the binary %q, want %q", w.context, sharedFile)
	case !shared && (embedded != 1 || w.context == ""):
		return diag.New(diag.ClassRun, "the compiled model does not hold its binary")
	}
	return nil
}

// isEdge reports whether a node converts between the graph's operands and what is compiled.
func isEdge(n *onnx.Node, m *onnx.Model) bool {
	for _, edge := range edges {
		if n.Op != edge || len(n.In) == 0 {
			continue
		}
		for _, initializer := range m.Graph.Initializers {
			if initializer.Name == n.In[0] { // a weight, which the compiled graph would be given anew with every call
				return false
			}
		}
		return true
	}
	return false
}
