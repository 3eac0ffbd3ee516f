package qnn

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/golden"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// dump writes a model without the graph it carries, one line for each part; of weights the checksum.
func dump(m *onnx.Model, weights []byte) []byte {
	var b bytes.Buffer
	values := func(what string, list []onnx.Value) {
		for _, v := range list {
			fmt.Fprintf(&b, "%s %s %d%v\n", what, v.Name, v.Type, v.Dims)
		}
	}
	fmt.Fprintf(&b, "ir %d %s %v\n", m.IR, m.Producer, m.Opsets)
	values("in", m.Graph.Inputs)
	for _, x := range m.Graph.Initializers {
		fmt.Fprintf(&b, "init %s %d%v", x.Name, x.Type, x.Dims)
		if e := x.External; e != nil {
			fmt.Fprintf(&b, " %s+%d:%d %08x\n", e.Location, e.Offset, e.Length, crc32.ChecksumIEEE(weights[e.Offset:e.Offset+e.Length]))
		} else if len(x.Raw) > 16 {
			fmt.Fprintf(&b, " %x... %d bytes\n", x.Raw[:16], len(x.Raw))
		} else {
			fmt.Fprintf(&b, " %x\n", x.Raw)
		}
	}
	for _, n := range m.Graph.Nodes {
		fmt.Fprintf(&b, "%-16s %s %s(%s) %s", n.Name, strings.Join(n.Out, ","), strings.TrimPrefix(n.Domain+".", "."), strings.Join(n.In, ","), n.Op)
		for _, a := range n.Attrs {
			switch a.Kind {
			case onnx.KindInt:
				fmt.Fprintf(&b, " %s=%d", a.Name, a.I)
			case onnx.KindFloat:
				fmt.Fprintf(&b, " %s=%v", a.Name, a.F)
			case onnx.KindString:
				fmt.Fprintf(&b, " %s=%q", a.Name, a.S)
			}
		}
		b.WriteByte('\n')
	}
	values("out", m.Graph.Outputs)
	return b.Bytes()
}

// The models that are compiled, for every operator, scheme, and a block.
func TestModels(t *testing.T) {
	for name, g := range graphs() {
		t.Run(name, func(t *testing.T) {
			p := build(t, g, 1)
			j, err := translate(&p.Graph, p.Weights)
			if err != nil {
				t.Fatal(err)
			}
			m, err := onnx.Parse(j.model)
			if err != nil {
				t.Fatal(err)
			}
			golden.Equal(t, "txt", dump(m, bytes.Join(j.weights, nil)))
			again, err := translate(&p.Graph, p.Weights)
			if err != nil || !reflect.DeepEqual(again, j) {
				t.Errorf("again it differs (%v)", err)
			}
		})
	}
}

// initializer is the content of one.
func initializer(t *testing.T, p driver.Piece, name string) []byte {
	t.Helper()
	j, err := translate(&p.Graph, p.Weights)
	if err != nil {
		t.Fatal(err)
	}
	m, err := onnx.Parse(j.model)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range m.Graph.Initializers {
		if x.Name == name {
			return bytes.Join(j.weights, nil)[x.External.Offset : x.External.Offset+x.External.Length]
		}
	}
	t.Fatalf("no initializer %q", name)
	return nil
}

// Columns of gate and up that alternate are sorted where a gated unit alone reads them, in every format of weights.
func TestSortedColumns(t *testing.T) {
	const k, n, turn = 32, 96, 16
	for _, s := range schemes {
		if s.QuantisedRows() {
			continue
		}
		g := op.Graph{
			Inputs:  []op.Value{{Name: "x", Type: op.F32, Rows: 2, Cols: k}},
			Temps:   []op.Value{{Name: "h", Type: op.F32, Rows: 2, Cols: n}},
			Outputs: []op.Value{{Name: "y", Type: op.F32, Rows: 2, Cols: n / 2}},
		}
		mm := op.Op{Kind: op.MatMul, M: 2, K: k, N: n, Scheme: s}
		var names []string
		for _, role := range mm.Sig().W {
			g.Weights, names = append(g.Weights, mm.WeightSpec(role, op.OnnxLayout)), append(names, role)
		}
		g.Nodes = []op.Node{
			{Op: mm, In: []string{"x"}, W: names, Out: []string{"h"}},
			{Op: op.Op{Kind: op.GLU, M: 2, N: n / 2, Interleave: turn, Act: op.SiLU}, In: []string{"h"}, Out: []string{"y"}},
		}
		p := build(t, g, 3)
		stored := make([]float32, k*n)
		if err := pack.Unpack(stored, g.Weights[0], p.Weights[0].Bytes); err != nil {
			t.Fatal(err)
		}
		sortedBytes := initializer(t, p.Piece, "w0")
		if s == op.A16FQ8C { // one block [N,K] of codes around 128
			blocks := sortedBytes
			sortedBytes = make([]byte, k*n)
			for i, code := range blocks {
				sortedBytes[i%k*n+i/k] = code - 128
			}
		}
		spec := g.Weights[0]
		packed := bytes.Clone(p.Weights[0].Bytes)
		copy(packed, sortedBytes)
		if _, at, scales, _ := pack.OnnxParts(spec); scales > 0 {
			copy(packed[at:], initializer(t, p.Piece, "w0.scale"))
		}
		got := make([]float32, k*n)
		if err := pack.Unpack(got, spec, packed); err != nil {
			t.Fatal(err)
		}
		for c := range n {
			from := c/turn*2*turn + c%turn // of gate
			if c >= n/2 {
				from = (c-n/2)/turn*2*turn + turn + c%turn
			}
			for i := range k {
				if got[i*n+c] != stored[i*n+from] {
					t.Fatalf("%s: row %d, column %d is %v, want column %d: %v", s, i, c, got[i*n+c], from, stored[i*n+from])
				}
			}
		}
	}
}

// A bias that does not fit 32 bits of its product's step takes a coarser column.
func TestLargeBias(t *testing.T) {
	o := op.Op{Kind: op.MatMul, M: 1, K: 32, N: 32, Scheme: op.A16SQ8C, Bias: true}
	p := build(t, single(o), 1)
	bias := number.Floats(p.Weights[1].Bytes)
	bias[3] = 1e6
	p.Weights[1].Bytes = number.Bytes(bias)
	scales, steps := number.Floats(initializer(t, p.Piece, "w0.scale")), number.Floats(initializer(t, p.Piece, "w0.bias.scale"))
	codes := initializer(t, p.Piece, "w0.bias")
	for c, b := range bias {
		got := float64(int32(binary.LittleEndian.Uint32(codes[4*c:]))) * float64(steps[c])
		if math.Abs(got-float64(b)) > float64(steps[c]) {
			t.Errorf("column %d: bias %v, want %v", c, got, b)
		}
	}
	_, at, n, _ := pack.OnnxParts(p.Graph.Weights[0])
	stored := number.Floats(p.Weights[0].Bytes[at : at+4*n])
	if scales[3] <= stored[3] || scales[4] != stored[4] || scales[31] == 0 {
		t.Errorf("scales %v, stored %v", scales, stored)
	}
}

func TestTranslateRefuses(t *testing.T) {
	good := op.Op{Kind: op.MatMul, M: 4, K: 32, N: 32, Scheme: op.A16SQ8C}
	change := func(o op.Op, f func(*piece)) driver.Piece {
		p := build(t, single(o), 1)
		p.Sample = nil
		f(&p)
		return p.Piece
	}
	bare := func(o op.Op) driver.Piece {
		g := single(o)
		p := driver.Piece{Graph: g, Weights: make(driver.Weights, len(g.Weights))}
		for j, s := range g.Weights {
			n, err := pack.Bytes(s)
			if err != nil {
				t.Fatal(err)
			}
			p.Weights[j].Bytes = make([]byte, n)
		}
		return p
	}
	act := op.Op{Kind: op.Activate, M: 3, N: 8, Act: op.SiLU}
	for what, c := range map[string]struct {
		p    driver.Piece
		want string
	}{
		"attention":          {bare(op.Op{Kind: op.Attention, M: 1, Heads: 1, KVHeads: 1, HeadDim: 8, KV: op.F32, Context: 8}), `operator "attention" is not compiled: it works on the cache`},
		"the cache":          {bare(op.Op{Kind: op.KVAppend, M: 1, Heads: 1, KVHeads: 1, HeadDim: 8, KV: op.F32}), `"kv_append" is not compiled: it works on the cache`},
		"a position":         {bare(op.Op{Kind: op.Rope, M: 1, Heads: 1, KVHeads: 1, HeadDim: 8}), `"rope" is not compiled: it depends on where a call is`},
		"a chosen row":       {bare(op.Op{Kind: op.SelectRow, M: 2, N: 8}), `"select_row" is not compiled: it depends`},
		"a table":            {bare(op.Op{Kind: op.Embed, M: 3, K: 53, N: 8, Table: op.F32}), `operator "embed" is not compiled`},
		"rows with scales":   {bare(op.Op{Kind: op.QuantRows, M: 3, N: 8}), `"quant_rows" with a scale for each row`},
		"rows that leave":    {bare(op.Op{Kind: op.QuantRows, M: 3, N: 8, Static: true}), `is u8: results leave a compiled graph as f32`},
		"scales to choose":   {bare(op.Op{Kind: op.QuantRows, M: 4, N: 32, Static: true, Scales: 2}), `operator "quant_rows" with 2 static scales to choose from is not compiled`},
		"another scheme":     {bare(op.Op{Kind: op.MatMul, M: 4, K: 32, N: 32, Scheme: op.A8TQ8C}), `scheme "a8t/q8c" is not compiled, want one of`},
		"another form":       {bare(op.Op{Kind: op.MatMul, M: 4, K: 32, N: 32, Scheme: op.A16SQ8C, Form: op.Swapped}), `form "swapped" are not compiled`},
		"many rows":          {bare(op.Op{Kind: op.Activate, M: 1 << 17, N: 8, Act: op.ReLU}), "131072 rows, want at most 65536"},
		"an invalid graph":   {change(good, func(p *piece) { p.Graph.Nodes[0].In[0] = "z" }), `"z"`},
		"another layout":     {driver.Piece{Graph: op.Single(good, pack.N32), Weights: driver.Weights{{Bytes: make([]byte, 1024+256)}, {Bytes: make([]byte, 256)}}}, "q8c n32 [32,32], want q8c onnx [32,32]"},
		"no weights":         {change(good, func(p *piece) { p.Weights = nil }), "got 0 weights, want 2"},
		"a short weight":     {change(good, func(p *piece) { p.Weights[0].Bytes = p.Weights[0].Bytes[:7] }), `weight "weight": got 7 bytes`},
		"a step of nothing":  {change(good, func(p *piece) { clear(p.Weights[1].Bytes) }), "the step of the input is 0, want a positive number below 2^113: calibrate"},
		"a step that is NaN": {change(good, func(p *piece) { copy(p.Weights[1].Bytes[4*32:], number.Bytes([]float32{float32(math.NaN())})) }), "the step of the output is NaN"},
		"a bias of infinity": {change(op.Op{Kind: op.MatMul, M: 4, K: 32, N: 32, Scheme: op.A16FW16, Bias: true}, func(p *piece) { copy(p.Weights[1].Bytes, number.Bytes([]float32{float32(math.Inf(1))})) }), `bias "bias": column 0 is +Inf`},
		"a bias beyond half": {change(op.Op{Kind: op.MatMul, M: 4, K: 32, N: 32, Scheme: op.A16FW16, Bias: true}, func(p *piece) { copy(p.Weights[1].Bytes, number.Bytes([]float32{70000})) }), "70000, beyond half precision"},
		"an input twice":     {change(act, func(p *piece) { p.Graph.Inputs = append(p.Graph.Inputs, p.Graph.Inputs[0]) }), `"x"`},
		"a passed input":     {change(act, func(p *piece) { p.Graph.Outputs = append(p.Graph.Outputs, p.Graph.Inputs[0]) }), `output "x" is an input that no node writes`},
		"half precision":     {change(act, func(p *piece) { p.Graph.Inputs[0].Type = op.F16 }), "f16"},
	} {
		_, err := prepare(&c.p)
		if err == nil {
			_, err = translate(&c.p.Graph, c.p.Weights)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", what, err, c.want)
		} else if class := diag.ClassOf(err); class != diag.ClassInput {
			t.Errorf("%s: class %v", what, class)
		}
	}
}
