package onnx

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
)

func small() *Model {
	return &Model{
		IR: IR, Producer: "p",
		Opsets: []OpsetID{{"", Opset}, {Contrib, ContribOpset}},
		Graph: Graph{
			Name: "g",
			Nodes: []Node{{Name: "n0", Op: "Gemm", Domain: Contrib, In: []string{"x", "w", ""}, Out: []string{"y"},
				Attrs: []Attr{Int("a", -2), Float("b", 0.5), String("c", "text"), Ints("d", 1, 0, 300)}}},
			Initializers: []Tensor{
				Float32s("c", []int64{2}, 1.5, -2),
				{Name: "w", Type: Int8, Dims: []int64{3, 64}, External: &External{"weights", 0, 192}},
			},
			Inputs:  []Value{{"x", Uint8, []int64{2, 3}}},
			Outputs: []Value{{"y", Float32, []int64{2, 64}}},
		},
		Props: []Prop{{"k", "v"}},
	}
}

// The bytes are those that the protobuf library writes for the same model, in the order of field numbers.
func TestBytes(t *testing.T) {
	const want = "080a1201703ae1010a610a01780a01770a001201791a026e30220447656d6d2a110a016118feffffffffffffffff01a001022a0b0a" +
		"0162150000003fa001012a0c0a0163220474657874a001032a0d0a01644001400040ac02a001073a0d636f6d2e6d6963726f736f6674" +
		"1201672a11080210014201634a080000c03f000000c02a3c0803084010034201776a130a086c6f636174696f6e120777656967687473" +
		"6a0b0a066f66667365741201306a0d0a066c656e677468120331393270015a130a0178120e0a0c080212080a0208020a02080362130a" +
		"0179120e0a0c080112080a0208020a02084042040a00101542110a0d636f6d2e6d6963726f736f6674100172060a016b120176"
	if got := hex.EncodeToString(small().Marshal()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	m, err := Parse(small().Marshal())
	if err != nil || !reflect.DeepEqual(m, small()) {
		t.Errorf("read back: %+v (%v)", m, err)
	}
	if v, ok := m.Prop("k"); v != "v" || !ok {
		t.Errorf("metadata %q, %v", v, ok)
	}
	if a, ok := m.Graph.Nodes[0].Attr("b"); a.F != 0.5 || !ok {
		t.Errorf("attribute %+v, %v", a, ok)
	}
	if _, ok := m.Graph.Nodes[0].Attr("z"); ok {
		t.Error("an attribute that is not there")
	}
}

func drawModel(t *rapid.T) *Model {
	name := rapid.StringMatching(`[a-z0-9.]{0,6}`)
	names := rapid.SliceOfN(name, 1, 4)
	typ := rapid.SampledFrom([]Type{Float32, Uint8, Int8, Int32, Int64, Bool, Float16, BFloat16, Uint16, Int4})
	dims := rapid.SliceOfN(rapid.Int64Range(0, 5), 1, 4)
	attr := rapid.Custom(func(t *rapid.T) Attr {
		s := name.Draw(t, "name")
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			return Int(s, rapid.Int64().Draw(t, "i"))
		case 1:
			return Float(s, rapid.Float32().Draw(t, "f"))
		case 2:
			return String(s, rapid.String().Draw(t, "s"))
		}
		return Ints(s, rapid.SliceOfN(rapid.Int64(), 1, 3).Draw(t, "ints")...)
	})
	tensor := rapid.Custom(func(t *rapid.T) Tensor {
		x := Tensor{Name: name.Draw(t, "name"), Type: typ.Draw(t, "type"), Dims: dims.Draw(t, "dims")}
		n := int64(1)
		for _, d := range x.Dims {
			n *= d
		}
		n = x.Type.Bytes(n)
		switch {
		case rapid.Bool().Draw(t, "external"):
			x.External = &External{name.Draw(t, "location"), rapid.Int64Range(0, 1<<40).Draw(t, "offset"), n}
		case n > 0:
			x.Raw = rapid.SliceOfN(rapid.Byte(), int(n), int(n)).Draw(t, "raw")
		}
		return x
	})
	value := rapid.Custom(func(t *rapid.T) Value {
		return Value{name.Draw(t, "name"), typ.Draw(t, "type"), dims.Draw(t, "dims")}
	})
	node := rapid.Custom(func(t *rapid.T) Node {
		return Node{Name: name.Draw(t, "name"), Op: name.Draw(t, "op"), Domain: name.Draw(t, "domain"), In: names.Draw(t, "in"), Out: names.Draw(t, "out"),
			Attrs: rapid.SliceOfN(attr, 1, 3).Draw(t, "attributes")}
	})
	return &Model{
		IR: rapid.Int64().Draw(t, "ir"), Producer: name.Draw(t, "producer"),
		Opsets: []OpsetID{{name.Draw(t, "domain"), rapid.Int64().Draw(t, "version")}},
		Graph: Graph{Name: name.Draw(t, "graph"), Nodes: rapid.SliceOfN(node, 1, 4).Draw(t, "nodes"), Initializers: rapid.SliceOfN(tensor, 1, 3).Draw(t, "tensors"),
			Inputs: rapid.SliceOfN(value, 1, 3).Draw(t, "inputs"), Outputs: rapid.SliceOfN(value, 1, 3).Draw(t, "outputs"),
			Inner: rapid.SliceOfN(value, 1, 3).Draw(t, "inner")},
		Props: []Prop{{name.Draw(t, "key"), rapid.String().Draw(t, "value")}},
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		b := m.Marshal()
		got, err := Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Marshal(), b) || !reflect.DeepEqual(got, m) {
			t.Fatalf("got %+v, want %+v", got, m)
		}
	})
}

func TestParseRefuses(t *testing.T) {
	good := small().Marshal()
	change := func(f func(*Model)) []byte {
		m := small()
		f(m)
		return m.Marshal()
	}
	many := make([]Node, maxCount+1)
	for what, c := range map[string]struct {
		b    []byte
		want string
	}{
		"cut off":              {good[:len(good)-1], "unexpected EOF"},
		"nothing of an int":    {[]byte{8}, "unexpected EOF"},
		"an unknown field":     {append(bytes.Clone(good), 5<<3|2, 0), "field 5"},
		"functions":            {append(bytes.Clone(good), putMessage(nil, 25, nil)...), "field 25"},
		"a field twice":        {append(bytes.Clone(good), putInt(nil, modelIR, IR)...), "not in the form"},
		"another order":        {append(bytes.Clone(good[2:]), good[:2]...), "not in the form"},
		"a long varint":        {append([]byte{8, 0x8a, 0}, good[2:]...), "not in the form"},
		"a group":              {[]byte{3<<3 | byte(protowire.StartGroupType)}, "wire type 3"},
		"a length that lies":   {protowire.AppendVarint([]byte{7<<3 | 2}, 1<<62), "unexpected EOF"},
		"an unknown attribute": {change(func(m *Model) { m.Graph.Nodes[0].Attrs[0].Kind = 5 }), "kind 5"},
		"an unknown type":      {change(func(m *Model) { m.Graph.Inputs[0].Type = 11 }), "type 11"},
		"a short constant":     {change(func(m *Model) { m.Graph.Initializers[0].Raw = nil }), "0 bytes, want 8"},
		"a constant's type":    {change(func(m *Model) { m.Graph.Initializers[0].Type = 0 }), "type 0"},
		"a huge constant":      {change(func(m *Model) { m.Graph.Initializers[0].Dims = []int64{1 << 31, 1 << 31, 1 << 31} }), "shape"},
		"a negative dimension": {change(func(m *Model) { m.Graph.Inputs[0].Dims[0] = -1 }), "dimension 0 is -1"},
		"a rank of 9":          {change(func(m *Model) { m.Graph.Inputs[0].Dims = make([]int64, 9) }), "dimension 8"},
		"external bytes":       {change(func(m *Model) { m.Graph.Initializers[1].External.Length = 191 }), "191 bytes"},
		"an external offset":   {change(func(m *Model) { m.Graph.Initializers[1].External.Offset = -1 }), "from byte -1"},
		"too many nodes":       {change(func(m *Model) { m.Graph.Nodes = many }), "more than 65536 of nodes"},
		"no text":              {change(func(m *Model) { m.Graph.Nodes[0].Op = "\xff" }), "UTF-8"},
		"too many bytes":       {make([]byte, MaxBytes+1), "want at most"},
	} {
		if m, err := Parse(c.b); err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %+v, %v, want %q", what, m, err, c.want)
		}
	}
	// A symbolic dimension.
	shape := putMessage(nil, shapeDim, putString(nil, 2, "batch"))
	value := putMessage(putString(nil, valueName, "x"), valueType, putMessage(nil, typeTensor, putMessage(putInt(nil, elemType, 1), elemShape, shape)))
	if _, err := Parse(putMessage(nil, modelGraph, putMessage(nil, graphInput, value))); err == nil || !strings.Contains(err.Error(), "a dimension is not a number") {
		t.Errorf("a symbolic dimension: %v", err)
	}
}

// What is read is written again as the same bytes, and nothing makes the reader fail otherwise.
func FuzzParse(f *testing.F) {
	f.Add(small().Marshal())
	f.Add((&Model{}).Marshal())
	f.Add([]byte{})
	f.Add(putMessage(nil, modelGraph, putMessage(nil, graphInitializer, putInt(nil, tensorLocation, 1))))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		if !bytes.Equal(m.Marshal(), b) {
			t.Fatal("the bytes of the model differ from those it was read from")
		}
		for _, x := range m.Graph.Initializers {
			if x.External == nil && len(x.Raw) > len(b) {
				t.Fatal("a constant is larger than its model")
			}
		}
	})
}

// foreign is small as another program may write it: other versions, documentation, fields in another order, integers
// packed into one field, sets of operators that nothing uses.
func foreign() []byte {
	text := func(b []byte, n protowire.Number) []byte { return putString(b, n, "said") }
	ints := func(n protowire.Number, v ...uint64) []byte {
		var b []byte
		for _, x := range v {
			b = protowire.AppendVarint(b, x)
		}
		return putMessage(nil, n, b)
	}
	m := small()
	n := &m.Graph.Nodes[0]
	attrs := [][]byte{append(text(putInt(putString(nil, attrName, "d"), attrKind, int64(KindInts)), 13), ints(attrInts, 1, 0, 300)...)}
	for _, i := range []int{1, 2, 0} {
		attrs = append(attrs, n.Attrs[i].append(nil))
	}
	n.Attrs = nil
	node := text(text(n.append(nil), 6), 9)
	for _, a := range attrs {
		node = putMessage(node, nodeAttr, a)
	}
	var c []byte
	c = append(c, ints(tensorDims, 2)...)
	c = putString(putInt(c, tensorType, int64(Float32)), tensorName, "c")
	c = text(putMessage(c, tensorRaw, m.Graph.Initializers[0].Raw), 12)
	graph := text(putMessage(nil, graphNode, node), 10)
	graph = putMessage(putMessage(graph, graphInitializer, m.Graph.Initializers[1].append(nil)), graphInitializer, c)
	graph = putMessage(putString(graph, graphName, "g"), graphInput, text(m.Graph.Inputs[0].append(nil), 3))
	graph = putMessage(putMessage(graph, graphOutput, m.Graph.Outputs[0].append(nil)), 13, m.Graph.Outputs[0].append(nil))
	b := putMessage(nil, modelOpset, putInt(putString(nil, opsetDomain, "ai.onnx.ml"), opsetVersion, 5))
	for _, o := range []OpsetID{m.Opsets[1], m.Opsets[0]} {
		b = putMessage(b, modelOpset, putInt(putString(nil, opsetDomain, o.Domain), opsetVersion, o.Version))
	}
	b = text(putMessage(b, modelGraph, graph), 6)
	return putInt(putString(putMessage(b, modelProp, putEntry("k", "v")), modelProducer, "p"), modelIR, IR)
}

// What others write becomes what hetc writes, and what would be lost on the way is refused.
func TestRead(t *testing.T) {
	want := small()
	want.Graph.Inner = want.Graph.Outputs
	m, err := Read(foreign())
	if err != nil || !reflect.DeepEqual(m, want) {
		t.Errorf("got %+v, want %+v (%v)", m, want, err)
	}
	if _, err := Parse(foreign()); err == nil {
		t.Error("Parse took a foreign model")
	}
	if m, err = Read(small().Marshal()); err != nil || !reflect.DeepEqual(m, small()) {
		t.Errorf("an own model: %+v (%v)", m, err)
	}
	in := func(n protowire.Number, b []byte) []byte { return putMessage(nil, modelGraph, putMessage(nil, n, b)) }
	for what, c := range map[string]struct {
		b    []byte
		want string
	}{
		"functions":          {putMessage(nil, 25, nil), "field 25"},
		"training":           {putMessage(nil, 20, nil), "field 20"},
		"sparse weights":     {in(15, nil), "field 15"},
		"a subgraph":         {in(graphNode, putMessage(nil, nodeAttr, putMessage(nil, 6, nil))), "field 6"},
		"an overload":        {in(graphNode, putString(nil, 8, "x")), "field 8"},
		"a reference":        {in(graphNode, putMessage(nil, nodeAttr, putString(nil, 21, "x"))), "field 21"},
		"values of a weight": {in(graphInitializer, putMessage(nil, 4, nil)), "field 4"},
		"a broken pack":      {in(graphInitializer, putMessage(nil, tensorDims, []byte{0x80})), "unexpected EOF"},
		"too many bytes":     {make([]byte, MaxBytes+1), "want at most"},
	} {
		if m, err := Read(c.b); err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %+v, %v, want %q", what, m, err, c.want)
		}
	}
}

// What is read of a foreign model is a model of hetc's.
func FuzzRead(f *testing.F) {
	f.Add(foreign())
	f.Add(small().Marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Read(b)
		if err != nil {
			return
		}
		if _, err := Parse(m.Marshal()); err != nil {
			t.Fatalf("read, but not as a model of hetc's: %v", err)
		}
	})
}
