package qnn

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/planir/op"
)

// changed returns an artifact after a change of its model.
func changed(t testing.TB, code []byte, change func(m *onnx.Model)) []byte {
	t.Helper()
	m, err := onnx.Parse(code)
	if err != nil {
		t.Fatal(err)
	}
	change(m)
	return m.Marshal()
}

// setProp replaces a value of the model's metadata.
func setProp(m *onnx.Model, key, value string) {
	for i := range m.Props {
		if m.Props[i].Key == key {
			m.Props[i].Value = value
		}
	}
}

// contextOf returns the node that holds the compiled graph.
func contextOf(m *onnx.Model) *onnx.Node {
	for i := range m.Graph.Nodes {
		if m.Graph.Nodes[i].Op == "EPContext" {
			return &m.Graph.Nodes[i]
		}
	}
	panic("the model has no compiled graph")
}

// attrOf returns an attribute of the node that holds the compiled graph.
func attrOf(m *onnx.Model, name string) *onnx.Attr {
	node := contextOf(m)
	for i := range node.Attrs {
		if node.Attrs[i].Name == name {
			return &node.Attrs[i]
		}
	}
	panic("the compiled graph has no attribute " + name)
}

// embed makes the binary a part of the model, as it is in an artifact for the emulator.
func embed(m *onnx.Model, binary string) {
	attrOf(m, "embed_mode").I = 1
	attrOf(m, "ep_cache_context").S = binary
}

// halve cuts the binary in the model in half.
func halve(m *onnx.Model) {
	binary := attrOf(m, "ep_cache_context")
	binary.S = binary.S[:len(binary.S)/2]
}

// change is a change of an artifact after which it is refused.
type change struct {
	what   string
	change func(m *onnx.Model)
	want   string // what the error says
}

// refuseChanges expects that an artifact is parsed, and is refused after each change.
func refuseChanges(t *testing.T, code []byte, changes []change) {
	t.Helper()
	if _, err := parse(code); err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		_, err := parse(changed(t, code, c.change))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.what, err, c.want)
		}
	}
}

// fakeContext returns a node that holds a compiled graph in all but its binary. The library writes further attributes.
func fakeContext(in, out []string, more ...onnx.Attr) onnx.Node {
	attrs := []onnx.Attr{
		onnx.String("ep_cache_context", "binary"),
		onnx.Int("embed_mode", 1),
		onnx.Int("main_context", 1),
		onnx.String("partition_name", "c"),
		onnx.String("source", ortapi.QNNProvider),
	}
	return onnx.Node{
		Name:   "c",
		Op:     "EPContext",
		Domain: onnx.Contrib,
		In:     in,
		Out:    out,
		Attrs:  append(attrs, more...),
	}
}

// fakeToken is what the library says of the device and the libraries for which it compiled.
const fakeToken = "v2:6:2.51.0:5.51.0:75:57:8:0"

// plain is an artifact in all but its binary, as the library and hetc's compiler make it.
func plain(t testing.TB) []byte {
	t.Helper()
	m := source(op.A16SQ8C)
	first, last := m.Graph.Nodes[0], m.Graph.Nodes[5]
	compiled := fakeContext([]string{"xq"}, []string{"yq"},
		onnx.String("ep_sdk_version", "v2.51.0"),
		onnx.String("io_name_overrides", "xq=x;"),
		onnx.Int("is_multi_soc_ep_context", 0),
		onnx.Int("max_size", 0))
	m.Graph.Nodes = []onnx.Node{first, compiled, last}
	m.Graph.Initializers = m.Graph.Initializers[:2]
	m.Graph.Inner = []onnx.Value{{Name: "yq", Type: onnx.Uint16, Dims: []int64{rows, cols}}}
	m.Opsets = append(m.Opsets, onnx.OpsetID{Domain: onnx.Contrib, Version: onnx.ContribOpset})
	m.Props = []onnx.Prop{{Key: keyToken, Value: fakeToken}}
	a, err := artifact(graph(op.A16SQ8C), m.Marshal())
	if err != nil {
		t.Fatal(err)
	}
	return a.Marshal()
}

// An artifact says for what device and libraries it was compiled, and whether its binary is shared.
func TestParse(t *testing.T) {
	m, err := parse(plain(t))
	if err != nil {
		t.Fatal(err)
	}
	if m.shared || m.token.soc != 57 || m.token.arch != 75 || m.token.api != (ortapi.QNNVersion{Major: 5, Minor: 51}) {
		t.Errorf("shared %v, token %+v", m.shared, m.token)
	}
}

// An artifact whose metadata are missing, damaged or unknown is refused.
func TestParseRefusesMetadata(t *testing.T) {
	refuseChanges(t, plain(t), []change{
		{
			what:   "no graph",
			change: func(m *onnx.Model) { m.Props = m.Props[1:] },
			want:   "what graph it was made of",
		},
		{
			what:   "no token",
			change: func(m *onnx.Model) { m.Props = m.Props[:1] },
			want:   "what device and libraries",
		},
		{
			what:   "broken graph",
			change: func(m *onnx.Model) { setProp(m, keyGraph, "{") },
			want:   "parse graph",
		},
		{
			what:   "another version of the token",
			change: func(m *onnx.Model) { setProp(m, keyToken, "v3:1") },
			want:   "want one of version 2",
		},
		{
			what:   "a letter in the token",
			change: func(m *onnx.Model) { setProp(m, keyToken, "v2:6:2.51.0:5.51.0:x:57:8:0") },
			want:   "part 4 is no number",
		},
		{
			what:   "a short version in the token",
			change: func(m *onnx.Model) { setProp(m, keyToken, "v2:6:2.51.0:5.51:75:57:8:0") },
			want:   "part 3 is no version",
		},
		{
			what: "other metadata",
			change: func(m *onnx.Model) {
				m.Props = append(m.Props, onnx.Prop{Key: "ort_config", Value: "{}"})
			},
			want: `metadata "ort_config" is not known`,
		},
		{
			what: "another domain of operators",
			change: func(m *onnx.Model) {
				m.Opsets = append(m.Opsets, onnx.OpsetID{Domain: "evil", Version: 1})
			},
			want: `domain "evil"`,
		},
	})
}

// An artifact whose inputs and outputs are not those of its graph is refused.
func TestParseRefusesOperands(t *testing.T) {
	refuseChanges(t, plain(t), []change{
		{
			what:   "another shape",
			change: func(m *onnx.Model) { m.Graph.Inputs[0].Dims = []int64{9, red} },
			want:   `want "x" f32 [8,64]`,
		},
		{
			what:   "another type",
			change: func(m *onnx.Model) { m.Graph.Outputs[0].Type = onnx.Float16 },
			want:   "output",
		},
		{
			what:   "two inputs",
			change: func(m *onnx.Model) { m.Graph.Inputs = append(m.Graph.Inputs, m.Graph.Inputs[0]) },
			want:   "2 inputs, the graph 1",
		},
	})
}

// An artifact in which the CPU would compute, or in which a value goes past the compiled graph, is refused.
func TestParseRefusesNodes(t *testing.T) {
	refuseChanges(t, plain(t), []change{
		{
			what: "an operator",
			change: func(m *onnx.Model) {
				product := onnx.Node{Op: "MatMul", In: []string{"x", "x"}, Out: []string{"q"}}
				m.Graph.Nodes = append(m.Graph.Nodes, product)
			},
			want: `node 3 is "MatMul", which the CPU would compute`,
		},
		{
			what:   "no compiled graph",
			change: func(m *onnx.Model) { contextOf(m).Op = "Cast" },
			want:   "0 compiled graphs",
		},
		{
			what:   "a compiled graph of another domain",
			change: func(m *onnx.Model) { contextOf(m).Domain = "evil" },
			want:   "EPContext",
		},
		{
			what: "two compiled graphs",
			change: func(m *onnx.Model) {
				again := *contextOf(m)
				again.Out = []string{"again"}
				m.Graph.Nodes = append(m.Graph.Nodes, again)
			},
			want: "2 compiled graphs",
		},
		{
			what: "a result past the compiled graph",
			change: func(m *onnx.Model) {
				first, last := &m.Graph.Nodes[0], &m.Graph.Nodes[len(m.Graph.Nodes)-1]
				last.In[0] = first.Out[0]
			},
			want: "does not come from the compiled graph",
		},
		{
			what: "a weight as input",
			change: func(m *onnx.Model) {
				compiled := contextOf(m)
				compiled.In = append(compiled.In, m.Graph.Initializers[0].Name)
			},
			want: "which comes from no input",
		},
		{
			what:   "an input computed again",
			change: func(m *onnx.Model) { m.Graph.Nodes[0].Out[0] = m.Graph.Inputs[0].Name },
			want:   "computed twice",
		},
	})
}

// A constant in a file, a large constant and an unknown attribute are refused.
func TestParseRefusesConstants(t *testing.T) {
	refuseChanges(t, plain(t), []change{
		{
			what: "a constant in a file",
			change: func(m *onnx.Model) {
				constant := &m.Graph.Initializers[0]
				constant.External = &onnx.External{Location: "/etc/passwd", Length: int64(len(constant.Raw))}
				constant.Raw = nil
			},
			want: `lies in the file "/etc/passwd"`,
		},
		{
			what: "a large constant",
			change: func(m *onnx.Model) {
				m.Graph.Initializers = append(m.Graph.Initializers, onnx.Tensor{
					Name: "big",
					Type: onnx.Uint8,
					Dims: []int64{1 << 17},
					Raw:  make([]byte, 1<<17),
				})
			},
			want: "131072 bytes, want at most",
		},
		{
			what: "another attribute",
			change: func(m *onnx.Model) {
				compiled := contextOf(m)
				compiled.Attrs = append(compiled.Attrs, onnx.String("hidden", "x"))
			},
			want: `attribute "hidden" that is not known`,
		},
		{
			what: "a compiled graph without a name",
			change: func(m *onnx.Model) {
				compiled := contextOf(m)
				compiled.Attrs = compiled.Attrs[:1]
			},
			want: "has no attribute",
		},
		{
			what:   "another source",
			change: func(m *onnx.Model) { attrOf(m, "source").S = "OpenVINOExecutionProvider" },
			want:   `is of "OpenVINOExecutionProvider"`,
		},
	})
}

// A compiled graph lies in the artifact or in the binary that its group shares. Another file is not read.
func TestParseRefusesFiles(t *testing.T) {
	inFile := changed(t, plain(t), func(m *onnx.Model) {
		attrOf(m, "embed_mode").I = 0
		attrOf(m, "ep_cache_context").S = sharedFile
	})
	refuse := func(what, attribute string, set func(a *onnx.Attr), want string) change {
		return change{what: what, change: func(m *onnx.Model) { set(attrOf(m, attribute)) }, want: want}
	}
	changes := []change{
		refuse("an empty name", "ep_cache_context", func(a *onnx.Attr) { a.S = "" }, "is empty"),
		refuse("no main context", "main_context", func(a *onnx.Attr) { a.I = 0 }, "main_context"),
		refuse("several SoCs", "is_multi_soc_ep_context", func(a *onnx.Attr) { a.I = 1 }, "is_multi_soc_ep_context"),
		refuse("another mode", "embed_mode", func(a *onnx.Attr) { a.I = 2 }, "embed_mode"),
	}
	for _, path := range []string{"/etc/passwd", "../context.bin", "other.bin", sharedFile + "/../x"} {
		set := func(a *onnx.Attr) { a.S = path }
		changes = append(changes, refuse(path, "ep_cache_context", set, "no other file is read"))
	}
	refuseChanges(t, inFile, changes)
}

// Bytes are parsed to an artifact of a graph, or they are an error.
func FuzzParse(f *testing.F) {
	f.Add(plain(f))
	f.Add((&onnx.Model{}).Marshal())
	f.Fuzz(func(t *testing.T, code []byte) {
		if m, err := parse(code); err == nil && len(m.graph.Nodes) == 0 {
			t.Error("an artifact of no graph")
		}
	})
}
