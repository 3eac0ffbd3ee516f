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

// dump writes a model without the graph it carries, one line for each part. Of weights it writes the checksum.
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
			sum := crc32.ChecksumIEEE(weights[e.Offset : e.Offset+e.Length])
			fmt.Fprintf(&b, " %s+%d:%d %08x\n", e.Location, e.Offset, e.Length, sum)
		} else if len(x.Raw) > 16 {
			fmt.Fprintf(&b, " %x... %d bytes\n", x.Raw[:16], len(x.Raw))
		} else {
			fmt.Fprintf(&b, " %x\n", x.Raw)
		}
	}
	for _, n := range m.Graph.Nodes {
		domain := strings.TrimPrefix(n.Domain+".", ".")
		fmt.Fprintf(&b, "%-16s %s %s(%s) %s", n.Name, strings.Join(n.Out, ","), domain, strings.Join(n.In, ","), n.Op)
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

// The models of operators and schemes, and of a piece of a layer, are those that were looked through. Translating again
// gives the same.
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

// initializer returns the content of an initializer of the translated graph.
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

// gated is a product whose columns of gate and up alternate in blocks, and the gated unit that reads them.
func gated(scheme op.Scheme, k, n, block int) op.Graph {
	g := op.Graph{
		Inputs:  []op.Value{{Name: "x", Type: op.F32, Rows: 2, Cols: k}},
		Temps:   []op.Value{{Name: "h", Type: op.F32, Rows: 2, Cols: n}},
		Outputs: []op.Value{{Name: "y", Type: op.F32, Rows: 2, Cols: n / 2}},
	}
	product := op.Op{Kind: op.MatMul, M: 2, K: k, N: n, Scheme: scheme}
	var names []string
	for _, role := range product.Sig().W {
		g.Weights, names = append(g.Weights, product.WeightSpec(role, op.OnnxLayout)), append(names, role)
	}
	unit := op.Op{Kind: op.GLU, M: 2, N: n / 2, Interleave: block, Act: op.SiLU}
	g.Nodes = []op.Node{
		{Op: product, In: []string{"x"}, W: names, Out: []string{"h"}},
		{Op: unit, In: []string{"h"}, Out: []string{"y"}},
	}
	return g
}

// translatedWeight returns the values of the first weight as the translated graph has them.
func translatedWeight(t *testing.T, p *piece) []float32 {
	t.Helper()
	spec := p.Graph.Weights[0]
	codes := initializer(t, p.Piece, "w0")
	if p.Graph.Nodes[0].Op.Scheme == op.A16FQ8C {
		rows := codes // one block [N,K] of codes around 128
		codes = make([]byte, spec.K*spec.N)
		for i, code := range rows {
			codes[i%spec.K*spec.N+i/spec.K] = code - 128
		}
	}
	packed := bytes.Clone(p.Weights[0].Bytes)
	copy(packed, codes)
	if _, at, scales, _ := pack.OnnxParts(spec); scales > 0 {
		copy(packed[at:], initializer(t, p.Piece, "w0.scale"))
	}
	values := make([]float32, spec.K*spec.N)
	if err := pack.Unpack(values, spec, packed); err != nil {
		t.Fatal(err)
	}
	return values
}

// Columns of gate and up that alternate are sorted where a gated unit alone reads them, in every format of weights.
func TestSortedColumns(t *testing.T) {
	const k, n, block = 32, 96, 16
	for _, scheme := range schemes {
		if scheme.QuantisedRows() {
			continue
		}
		p := build(t, gated(scheme, k, n, block), 3)
		stored := make([]float32, k*n)
		if err := pack.Unpack(stored, p.Graph.Weights[0], p.Weights[0].Bytes); err != nil {
			t.Fatal(err)
		}

		sorted := translatedWeight(t, &p)

		for c := range n {
			from := c/block*2*block + c%block // of gate
			if c >= n/2 {                     // of up
				from = (c-n/2)/block*2*block + block + c%block
			}
			for i := range k {
				if got, want := sorted[i*n+c], stored[i*n+from]; got != want {
					t.Fatalf("%s: row %d, column %d is %v, want column %d: %v", scheme, i, c, got, from, want)
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

	scales := number.Floats(initializer(t, p.Piece, "w0.scale"))
	steps := number.Floats(initializer(t, p.Piece, "w0.bias.scale"))
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

// untranslatable is a piece that is refused.
type untranslatable struct {
	what  string
	piece driver.Piece
	want  string // what the error says
}

// refuseAll expects errors of input.
func refuseAll(t *testing.T, pieces []untranslatable) {
	t.Helper()
	for _, c := range pieces {
		_, err := prepare(&c.piece)
		if err == nil {
			_, err = translate(&c.piece.Graph, c.piece.Weights)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.what, err, c.want)
			continue
		}
		if class := diag.ClassOf(err); class != diag.ClassInput {
			t.Errorf("%s: class %v", c.what, class)
		}
	}
}

// bare is a piece of one operator whose weights are zeros.
func bare(t *testing.T, o op.Op) driver.Piece {
	t.Helper()
	g := single(o)
	p := driver.Piece{Graph: g, Weights: make(driver.Weights, len(g.Weights))}
	for j, spec := range g.Weights {
		size, err := pack.Bytes(spec)
		if err != nil {
			t.Fatal(err)
		}
		p.Weights[j].Bytes = make([]byte, size)
	}
	return p
}

// changed is a piece of one operator after a change, without a sample.
func changed(t *testing.T, o op.Op, change func(p *piece)) driver.Piece {
	t.Helper()
	p := build(t, single(o), 1)
	p.Sample = nil
	change(&p)
	return p.Piece
}

// Operators that work on the cache, or depend on where a call is, and schemes and forms without a model are refused.
func TestTranslateRefusesOperators(t *testing.T) {
	var pieces []untranslatable
	for _, c := range []struct {
		what     string
		operator op.Op
		want     string
	}{
		{
			what:     "attention",
			operator: op.Op{Kind: op.Attention, M: 1, Heads: 1, KVHeads: 1, HeadDim: 8, KV: op.F32, Context: 8},
			want:     `operator "attention" is not compiled: it works on the cache`,
		},
		{
			what:     "the cache",
			operator: op.Op{Kind: op.KVAppend, M: 1, Heads: 1, KVHeads: 1, HeadDim: 8, KV: op.F32},
			want:     `"kv_append" is not compiled: it works on the cache`,
		},
		{
			what:     "a position",
			operator: op.Op{Kind: op.Rope, M: 1, Heads: 1, KVHeads: 1, HeadDim: 8},
			want:     `"rope" is not compiled: it depends on where a call is`,
		},
		{
			what:     "a chosen row",
			operator: op.Op{Kind: op.SelectRow, M: 2, N: 8},
			want:     `"select_row" is not compiled: it depends`,
		},
		{
			what:     "a table",
			operator: op.Op{Kind: op.Embed, M: 3, K: 53, N: 8, Table: op.F32},
			want:     `operator "embed" is not compiled`,
		},
		{
			what:     "rows with scales",
			operator: op.Op{Kind: op.QuantRows, M: 3, N: 8},
			want:     `"quant_rows" with a scale for each row`,
		},
		{
			what:     "rows that leave",
			operator: op.Op{Kind: op.QuantRows, M: 3, N: 8, Static: true},
			want:     `is u8: results leave a compiled graph as f32`,
		},
		{
			what:     "scales to choose",
			operator: op.Op{Kind: op.QuantRows, M: 4, N: 32, Static: true, Scales: 2},
			want:     `operator "quant_rows" with 2 static scales to choose from is not compiled`,
		},
		{
			what:     "another scheme",
			operator: op.Op{Kind: op.MatMul, M: 4, K: 32, N: 32, Scheme: op.A8TQ8C},
			want:     `scheme "a8t/q8c" is not compiled, want one of`,
		},
		{
			what:     "another form",
			operator: op.Op{Kind: op.MatMul, M: 4, K: 32, N: 32, Scheme: op.A16SQ8C, Form: op.Swapped},
			want:     `form "swapped" are not compiled`,
		},
		{
			what:     "many rows",
			operator: op.Op{Kind: op.Activate, M: 1 << 17, N: 8, Act: op.ReLU},
			want:     "131072 rows, want at most 65536",
		},
	} {
		pieces = append(pieces, untranslatable{c.what, bare(t, c.operator), c.want})
	}
	refuseAll(t, pieces)
}

// Weights in another layout, such that are missing or short, and numbers that half precision or a grid cannot hold are
// refused.
func TestTranslateRefusesWeights(t *testing.T) {
	onGrid := op.Op{Kind: op.MatMul, M: 4, K: 32, N: 32, Scheme: op.A16SQ8C}
	inHalf := op.Op{Kind: op.MatMul, M: 4, K: 32, N: 32, Scheme: op.A16FW16, Bias: true}
	set := func(p *piece, weight, at int, value float32) {
		copy(p.Weights[weight].Bytes[4*at:], number.Bytes([]float32{value}))
	}
	refuseAll(t, []untranslatable{
		{
			what: "another layout",
			piece: driver.Piece{
				Graph:   op.Single(onGrid, pack.N32),
				Weights: driver.Weights{{Bytes: make([]byte, 1024+256)}, {Bytes: make([]byte, 256)}},
			},
			want: "q8c n32 [32,32], want q8c onnx [32,32]",
		},
		{
			what:  "no weights",
			piece: changed(t, onGrid, func(p *piece) { p.Weights = nil }),
			want:  "got 0 weights, want 2",
		},
		{
			what:  "a short weight",
			piece: changed(t, onGrid, func(p *piece) { p.Weights[0].Bytes = p.Weights[0].Bytes[:7] }),
			want:  `weight "weight": got 7 bytes`,
		},
		{
			what:  "a step of nothing",
			piece: changed(t, onGrid, func(p *piece) { clear(p.Weights[1].Bytes) }),
			want:  "the step of the input is 0, want a positive number below 2^113: calibrate",
		},
		{
			what:  "a step that is NaN",
			piece: changed(t, onGrid, func(p *piece) { set(p, 1, 32, float32(math.NaN())) }),
			want:  "the step of the output is NaN",
		},
		{
			what:  "a bias of infinity",
			piece: changed(t, inHalf, func(p *piece) { set(p, 1, 0, float32(math.Inf(1))) }),
			want:  `bias "bias": column 0 is +Inf`,
		},
		{
			what:  "a bias beyond half",
			piece: changed(t, inHalf, func(p *piece) { set(p, 1, 0, 70000) }),
			want:  "70000, beyond half precision",
		},
	})
}

// A graph that is not valid, or whose values do not enter and leave as float32, is refused.
func TestTranslateRefusesValues(t *testing.T) {
	product := op.Op{Kind: op.MatMul, M: 4, K: 32, N: 32, Scheme: op.A16SQ8C}
	unit := op.Op{Kind: op.Activate, M: 3, N: 8, Act: op.SiLU}
	refuseAll(t, []untranslatable{
		{
			what:  "an invalid graph",
			piece: changed(t, product, func(p *piece) { p.Graph.Nodes[0].In[0] = "z" }),
			want:  `"z"`,
		},
		{
			what:  "an input twice",
			piece: changed(t, unit, func(p *piece) { p.Graph.Inputs = append(p.Graph.Inputs, p.Graph.Inputs[0]) }),
			want:  `"x"`,
		},
		{
			what:  "a passed input",
			piece: changed(t, unit, func(p *piece) { p.Graph.Outputs = append(p.Graph.Outputs, p.Graph.Inputs[0]) }),
			want:  `output "x" is an input that no node writes`,
		},
		{
			what:  "half precision",
			piece: changed(t, unit, func(p *piece) { p.Graph.Inputs[0].Type = op.F16 }),
			want:  "f16",
		},
	})
}
