package qnn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/qnn"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// rowScale is the static scale of rows in 8 bit, for values of -4 to 4.
const rowScale = float32(4) / 127

// expertGroup is a group of so many experts: the rounding of rows to 8 bit, and a product with a matrix for each slot.
func expertGroup(slots, rows int) op.Graph {
	product := op.Op{Kind: op.GroupMatMul, M: rows, K: red, N: cols, Experts: slots, Scheme: op.A8SQ8C}
	graph := op.Single(product, op.OnnxLayout)
	round := op.Op{Kind: op.QuantRows, M: rows, N: red, Static: true}
	scale := round.WeightSpec(round.Sig().W[0], op.OnnxLayout)
	scale.Name = "rows"

	graph.Temps = graph.Inputs
	graph.Inputs = []op.Value{{Name: "in", Type: op.F32, Rows: rows, Cols: red}}
	graph.Weights = append(graph.Weights, scale)
	graph.Nodes = slices.Insert(graph.Nodes, 0, op.Node{
		Op:  round,
		In:  []string{"in"},
		Out: slices.Clone(graph.Nodes[0].In),
		W:   []string{scale.Name},
	})
	return graph
}

// compileExperts compiles a group for the emulator, and returns what the emulator computes for the sample.
func compileExperts(t *testing.T, slots, rows int) (artifact driver.Artifact, emulated []byte) {
	t.Helper()
	graph := expertGroup(slots, rows)
	group := driver.Piece{
		Name:    fmt.Sprint(slots),
		Graph:   graph,
		Weights: weightsOf(t, &graph),
		Sample:  [][]byte{slices.Clone(mem.Bytes(ramp(rows * red)))},
	}
	npu := driver.Target{Proc: "npu", Options: target, Emulator: true}
	compiled, err := compile.New(compile.Options{}).CompileGroup(t.Context(), []driver.Piece{group}, npu)
	if err != nil {
		t.Fatalf("%d slots: %v", slots, err)
	}
	return compiled.Artifacts[0].Artifact, compiled.Artifacts[0].Emulated[0]
}

// A group of experts computes the bits of the compiler's emulator. Its artifact is refused where it has other slots or
// rows than the plan, says so, or is damaged, and the processor computes the same after that.
func TestGroupArtifactsRefused(t *testing.T) {
	if _, err := ortapi.FindQNN(""); err != nil {
		require.Skip(t, "qnn", err)
	}
	require.Slow(t)
	const slots = 4
	plan := expertGroup(slots, rows)
	good, emulated := compileExperts(t, slots, rows)
	good.Graph = &plan
	p := open(t, target)
	if err := p.Attach(); err != nil {
		t.Fatal(err)
	}
	exe, err := p.Load(t.Context(), good, nil)
	if err != nil {
		t.Fatal(err)
	}
	x, y, bindings := operands(t, p)
	copy(x, ramp(rows*red))
	compute := func() {
		t.Helper()
		clear(y)
		if _, err := p.Run(exe, bindings); err != nil || !bytes.Equal(mem.Bytes(y), emulated) {
			t.Errorf("the group computes other bits than the compiler's emulator (%v)", err)
		}
	}

	compute()
	for _, c := range badGroups(t, good.Code, slots) {
		exe, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: c.code, Graph: &plan}, nil)
		class := diag.ClassOf(err)
		if exe != nil || err == nil || !strings.Contains(err.Error(), c.want) || class != c.class {
			t.Errorf("%s: got %v of class %v, want %q of class %v", c.what, err, class, c.want, c.class)
		}
	}
	compute()
}

// badGroup is an artifact that is refused.
type badGroup struct {
	what  string
	code  []byte
	class diag.Class
	want  string
}

// badGroups are artifacts that are not a good one of so many slots.
func badGroups(t *testing.T, good []byte, slots int) []badGroup {
	t.Helper()
	said := func(slots, rowsOfProduct int) []byte {
		other := expertGroup(slots, rows)
		other.Nodes[1].Op.M = rowsOfProduct
		text, err := json.Marshal(&other)
		if err != nil {
			t.Fatal(err)
		}
		return changed(t, good, func(m *onnx.Model) { setProp(m, keyGraph, string(text)) })
	}
	const another = "another graph than the plan"
	bad := []badGroup{
		{what: "said to be of fewer slots", code: said(2, rows), class: diag.ClassVerify, want: another},
		{
			what:  "said to be of uneven slots",
			code:  said(4, rows+1),
			class: diag.ClassInput,
			want:  "want a multiple of experts 4",
		},
		{what: "no bytes", class: diag.ClassInput, want: "empty"},
		{what: "half", code: good[:len(good)/2], class: diag.ClassInput, want: "unexpected EOF"},
		{what: "half a binary", code: changed(t, good, halve), class: diag.ClassRun},
	}
	for _, other := range []struct{ slots, rows int }{
		{slots: 2, rows: rows},
		{slots: 8, rows: rows},
		{slots: slots, rows: 2 * rows},
	} {
		artifact, _ := compileExperts(t, other.slots, other.rows)
		bad = append(bad, badGroup{
			what:  fmt.Sprintf("%d slots of %d rows", other.slots, other.rows/other.slots),
			code:  artifact.Code,
			class: diag.ClassVerify,
			want:  another,
		})
	}
	return bad
}
