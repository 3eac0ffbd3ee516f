package qnn

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/scores"
)

// Metadata of an artifact.
const (
	keyGraph = "hetc.graph"
	keyHeads = "hetc.heads"                                  // the weight of an estimate of scores, which the driver rounds by
	keyToken = "ep_compatibility_info." + ortapi.QNNProvider // as the library writes it
)

// sharedFile is the one name by which an artifact may refer to a binary that its group shares.
const sharedFile = "g0_qnn.bin"

// model is an artifact that was checked: it holds one compiled graph and conversions at its edges,
// and nothing else.
type model struct {
	code    []byte
	graph   op.Graph
	shared  bool
	token   token
	in, out []onnx.Value // of the model, in the order of the graph's
	heads   []float32    // of an estimate of scores
}

// parse checks that an artifact is whole and that only the NPU can compute it.
func parse(code []byte) (*model, error) {
	if len(code) == 0 {
		return nil, diag.New(diag.ClassInput, "the artifact is empty")
	}
	parsed, err := onnx.Parse(code)
	if err != nil {
		return nil, err
	}
	out := &model{code: code, in: parsed.Graph.Inputs, out: parsed.Graph.Outputs}
	again := func(format string, args ...any) error {
		return diag.New(diag.ClassInput, format, args...).WithHint("compile the bundle again")
	}
	text, ok := parsed.Prop(keyGraph)
	if !ok {
		return nil, again("the model does not say what graph it was made of")
	}
	if out.graph, err = driver.ParseGraph([]byte(text)); err != nil {
		return nil, err
	}
	if operator := out.graph.Estimate(); operator != nil {
		text, _ := parsed.Prop(keyHeads)
		if err := json.Unmarshal([]byte(text), &out.heads); err != nil {
			return nil, again("the scales of the estimate's heads, metadata %q, cannot be read: %w", keyHeads, err)
		}
		if _, err := scores.Heads(*operator, out.heads); err != nil {
			return nil, again("metadata %q: %w", keyHeads, err)
		}
	}
	text, ok = parsed.Prop(keyToken)
	if !ok {
		return nil, again("the model does not say what device and libraries it was compiled for: it has no metadata %q", keyToken)
	}
	if out.token, err = parseToken(text); err != nil {
		return nil, err
	}
	for _, prop := range parsed.Props {
		if !strings.HasPrefix(prop.Key, "hetc.") && prop.Key != keyToken {
			return nil, again("metadata %q is not known", prop.Key)
		}
	}
	for _, opset := range parsed.Opsets {
		if opset.Domain != "" && opset.Domain != onnx.Contrib {
			return nil, again("operators of domain %q are not known", opset.Domain)
		}
	}
	if err := out.operands(); err != nil {
		return nil, err
	}
	return out, out.nodes(&parsed.Graph)
}

// elements are the library's element types.
var elements = map[op.Type]onnx.Type{
	op.F32: onnx.Float32, op.F16: onnx.Float16, op.BF16: onnx.BFloat16, op.I32: onnx.Int32, op.I8: onnx.Int8,
	op.U8: onnx.Uint8,
}

// operands compares the model's inputs and outputs with the graph's, by position.
func (m *model) operands() error {
	compare := func(what string, got []onnx.Value, want []op.Value) error {
		if len(got) != len(want) {
			return fmt.Errorf("the model has %d %ss, the graph %d", len(got), what, len(want))
		}
		for i, declared := range want {
			if wanted := got[i]; wanted.Type != elements[declared.Type] ||
				!slices.Equal(wanted.Dims, []int64{int64(declared.Rows), int64(declared.Cols)}) {
				return fmt.Errorf("%s %q of the model is of type %d and shape %v, want %q %s [%d,%d]", what,
					wanted.Name, wanted.Type, wanted.Dims, declared.Name, declared.Type, declared.Rows, declared.Cols)
			}
		}
		return nil
	}
	if m.graph.State() && m.graph.Estimate() == nil {
		return diag.New(diag.ClassInput, "the graph uses the cache, which a compiled graph does not see")
	}
	launches := m.graph.Launches(op.F32) // of an estimate a compiled graph sees codes and products alone
	if err := compare("input", m.in, launches.Inputs); err != nil {
		return err
	}
	return compare("output", m.out, launches.Outputs)
}

// edges are the conversions at the graph's inputs and outputs, which the library executes on the
// CPU.
var edges = map[string]bool{"QuantizeLinear": true, "DequantizeLinear": true, "Cast": true}

// largestConstant bounds the scales and zero points of edges in bytes.
const largestConstant = 1 << 16

// nodes checks that the model is one compiled graph, with nothing but conversions between it and the inputs and
// outputs. So the CPU computes nothing else, and no value bypasses the NPU.
func (m *model) nodes(graph *onnx.Graph) error {
	constants, err := constantsOf(graph)
	if err != nil {
		return err
	}
	from := map[string]side{}
	for _, value := range graph.Inputs {
		from[value.Name] = before
	}
	compiled := 0
	for i := range graph.Nodes {
		node := &graph.Nodes[i]
		where := behind
		switch {
		case node.Op == "EPContext" && node.Domain == onnx.Contrib:
			if err := m.context(node); err != nil {
				return err
			}
			for _, in := range node.In {
				if from[in] != before {
					return diag.New(diag.ClassInput, "the compiled graph reads %q, which comes from no input", in)
				}
			}
			compiled++
		case edges[node.Op] && (node.Domain == "" || node.Domain == onnx.Contrib):
			if err := checkEdge(i, node, from, constants); err != nil {
				return err
			}
			where = from[node.In[0]] // a conversion stays on its side
		default:
			return diag.New(diag.ClassInput,
				"node %d is %s, which the CPU would compute: want one compiled graph, and %s at its edges", i,
				strconv.Quote(node.Op), "QuantizeLinear, DequantizeLinear or Cast").
				WithHint("the operators that the NPU does not take belong to another processor of the plan")
		}
		for _, out := range node.Out {
			if from[out] != 0 || constants[out] {
				return diag.New(diag.ClassInput, "node %d (%s): %q is computed twice", i, node.Op, out)
			}
			from[out] = where
		}
	}
	if compiled != 1 {
		return diag.New(diag.ClassInput, "the model has %d compiled graphs (nodes EPContext), want one", compiled).
			WithHint("a compiler that takes nothing of a graph leaves a copy of its source, for the CPU: compile the bundle again")
	}
	for _, value := range graph.Outputs {
		if from[value.Name] != behind {
			return diag.New(diag.ClassInput, "output %q does not come from the compiled graph", value.Name)
		}
	}
	return nil
}

// side says where a value comes from: before the compiled graph from an input, behind it from the graph. 0: unknown.
type side int

const before, behind side = 1, 2

// constantsOf returns the names of a model's constants, which must be small and inside the artifact.
func constantsOf(graph *onnx.Graph) (map[string]bool, error) {
	constants := map[string]bool{}
	for _, tensor := range graph.Initializers {
		switch {
		case tensor.External != nil:
			return nil, diag.New(diag.ClassInput, "constant %q lies in the file %q, want it inside the artifact",
				tensor.Name, tensor.External.Location)
		case len(tensor.Raw) > largestConstant:
			return nil, diag.New(diag.ClassInput,
				"constant %q has %d bytes, want at most %d: weights are compiled into the graph", tensor.Name,
				len(tensor.Raw), largestConstant)
		}
		constants[tensor.Name] = true
	}
	return constants, nil
}

// checkEdge checks a conversion: it reads one value of either side, and otherwise constants.
func checkEdge(i int, node *onnx.Node, from map[string]side, constants map[string]bool) error {
	if len(node.In) < 1 || len(node.Out) != 1 || from[node.In[0]] == 0 {
		return diag.New(diag.ClassInput, "node %d (%s) converts neither an input nor an output", i, node.Op)
	}
	for _, in := range node.In[1:] {
		if in != "" && !constants[in] {
			return diag.New(diag.ClassInput, "node %d (%s): %q is no constant", i, node.Op, in)
		}
	}
	return nil
}

// context checks the node of the compiled graph: its binary lies in the node itself, or in the
// group's shared file, and nowhere else.
func (m *model) context(node *onnx.Node) error {
	// attributes with the only values that they may have
	whole := map[string]int64{"main_context": 1, "embed_mode": 1, "is_multi_soc_ep_context": 0}
	if attr, ok := node.Attr("embed_mode"); ok && attr.Kind == onnx.KindInt && attr.I == 0 {
		m.shared, whole["embed_mode"] = true, 0
	}
	for _, attr := range node.Attrs {
		want, known := whole[attr.Name]
		switch attr.Name {
		case "main_context", "embed_mode", "is_multi_soc_ep_context":
			if attr.Kind != onnx.KindInt || !known || attr.I != want {
				return diag.New(diag.ClassInput, "the compiled graph has %s %d, want %d", attr.Name, attr.I, want)
			}
			delete(whole, attr.Name)
		case "source":
			if attr.S != ortapi.QNNProvider {
				return diag.New(diag.ClassInput, "the compiled graph is of %q, want %q", attr.S, ortapi.QNNProvider)
			}
		case "ep_cache_context":
			if attr.Kind != onnx.KindString || attr.S == "" {
				return diag.New(diag.ClassInput, "the compiled graph is empty")
			}
			if m.shared && attr.S != sharedFile {
				return diag.New(diag.ClassInput,
					"the compiled graph lies in the file %q, want %q: no other file is read", attr.S, sharedFile)
			}
		case "partition_name", "ep_sdk_version", "max_size", "io_name_overrides":
		default:
			return diag.New(diag.ClassInput, "the compiled graph has an attribute %q that is not known", attr.Name)
		}
	}
	delete(whole, "is_multi_soc_ep_context") // earlier libraries do not write it
	for name := range whole {
		return diag.New(diag.ClassInput, "the compiled graph has no attribute %q", name)
	}
	for _, name := range []string{"source", "ep_cache_context", "partition_name"} {
		if _, ok := node.Attr(name); !ok {
			return diag.New(diag.ClassInput, "the compiled graph has no attribute %q", name)
		}
	}
	return nil
}

// token is the library's description of what a binary was compiled for.
// "v2:6:2.51.0:5.51.0:75:57:8:0" names the backend (6: HTP), the SDK, the version of the backend's
// interface, the architecture (0: left to the SoC), the SoC, and the VTCM in MB.
type token struct {
	text    string
	sdk     string
	api     ortapi.QNNVersion
	arch    int // 0: not said
	soc     int
	backend int
}

const backendHTP = 6

// parseToken reads a compatibility string.
func parseToken(s string) (token, error) {
	out := token{text: s}
	bad := func(why string) (token, error) {
		return token{}, diag.New(diag.ClassInput, "compatibility string %q: %s", s,
			why).WithHint("the bundle was compiled by a version of the library that this hetc does not know")
	}
	fields := strings.Split(s, ":")
	if len(s) > 200 || len(fields) != 8 || fields[0] != "v2" {
		return bad("want one of version 2, of 8 parts")
	}
	numbers := map[int]*int{1: &out.backend, 4: &out.arch, 5: &out.soc}
	for i, to := range numbers {
		number, err := strconv.Atoi(fields[i])
		if err != nil || number < 0 {
			return bad(fmt.Sprintf("part %d is no number", i))
		}
		*to = number
	}
	if out.backend != backendHTP {
		return bad(fmt.Sprintf("it is of backend %d, want %d, the HTP", out.backend, backendHTP))
	}
	out.sdk = fields[2]
	var ok bool
	if out.api, ok = ortapi.ParseQNNVersion(fields[3]); !ok {
		return bad("part 3 is no version")
	}
	return out, nil
}

// names are the SoCs by the vendor's numbers (QNN's table of supported Snapdragon devices), as
// messages show them.
var names = map[int]string{
	36: "SM8450, Snapdragon 8 Gen 1", 43: "SM8550, Snapdragon 8 Gen 2", 57: "SM8650, Snapdragon 8 Gen 3",
	60: "SC8380XP, Snapdragon X Elite",
	69: "SM8750, Snapdragon 8 Elite", 87: "SM8850, Snapdragon 8 Elite Gen 5",
}

// socName names a SoC in messages, by its number where the name is not known.
func socName(n int) string {
	if name := names[n]; name != "" {
		return fmt.Sprintf("SoC %d (%s)", n, name)
	}
	return fmt.Sprintf("SoC %d", n)
}

// match compares what an artifact was compiled for with the processor and the library, before
// anything is loaded. soc and arch are 0 where the options do not say.
func (t token) match(soc, arch int, library ortapi.QNNVersion) error {
	switch {
	case soc != 0 && t.soc != soc:
		return diag.New(diag.ClassInput, "it was compiled for %s, this processor is of %s", socName(t.soc),
			socName(soc)).
			WithHint("emit the bundle for this SoC: hetc emit --target NAME")
	case arch != 0 && t.arch != 0 && t.arch != arch:
		return diag.New(diag.ClassInput, "it was compiled for the architecture v%d, this processor is a v%d", t.arch,
			arch).
			WithHint("emit the bundle for this SoC: hetc emit --target NAME")
	case t.api.Major != library.Major || t.api.Minor > library.Minor:
		return diag.New(diag.ClassUnavailable,
			"it was compiled with version %v of the HTP's interface (SDK %s), the library here has %v", t.api, t.sdk,
			library).
			WithHint("install libraries of SDK %s or later, or compile the bundle with those that are here", t.sdk)
	}
	return nil
}
