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

// expertGroup is a group of so many experts: rows in 8 bit, and a product with a matrix for each slot.
func expertGroup(slots, m int) op.Graph {
	g := op.Single(op.Op{Kind: op.GroupMatMul, M: m, K: red, N: cols, Experts: slots, Scheme: op.A8SQ8C}, op.OnnxLayout)
	quant := op.Op{Kind: op.QuantRows, M: m, N: red, Static: true}
	scale := quant.WeightSpec(quant.Sig().W[0], op.OnnxLayout)
	scale.Name = "rows"
	g.Temps = g.Inputs
	g.Inputs = []op.Value{{Name: "in", Type: op.F32, Rows: m, Cols: red}}
	g.Weights = append(g.Weights, scale)
	g.Nodes = slices.Insert(g.Nodes, 0, op.Node{Op: quant, In: []string{"in"}, Out: slices.Clone(g.Nodes[0].In),
		W: []string{scale.Name}})
	return g
}

// An artifact of a group of experts that has other slots, other rows or half of its binary is refused, and so is one that
// is said to be of other slots than it has in the plan.
func TestGroupArtifactsRefused(t *testing.T) {
	if _, err := ortapi.FindQNN(""); err != nil {
		require.Skip(t, "qnn", err)
	}
	require.Slow(t)
	const slots = 4
	made := func(slots, m int) (driver.Artifact, []byte) {
		graph := expertGroup(slots, m)
		group := driver.Piece{Name: fmt.Sprint(slots), Graph: graph, Weights: weightsOf(t, &graph),
			Sample: [][]byte{slices.Clone(mem.Bytes(ramp(m * red)))}}
		compiled, err := compile.New(compile.Options{}).CompileGroup(t.Context(), []driver.Piece{group},
			driver.Target{Proc: "npu", Options: target, Emulator: true})
		if err != nil {
			t.Fatalf("%d slots: %v", slots, err)
		}
		return compiled.Artifacts[0].Artifact, compiled.Artifacts[0].Emulated[0]
	}
	plan := expertGroup(slots, rows)
	good, emulated := made(slots, rows)
	good.Graph = &plan
	p := open(t, target)
	if err := p.Attach(); err != nil {
		t.Fatal(err)
	}
	e, err := p.Load(t.Context(), good, nil)
	if err != nil {
		t.Fatal(err)
	}
	x, y, b := operands(t, p)
	copy(x, ramp(rows*red))
	if _, err := p.Run(e, b); err != nil || !bytes.Equal(mem.Bytes(y), emulated) {
		t.Errorf("the group computes other bits than the compiler's emulator (%v)", err)
	}

	refused := func(what string, code []byte, class diag.Class, want string) {
		t.Helper()
		e, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code, Graph: &plan}, nil)
		if e != nil || err == nil || !strings.Contains(err.Error(), want) || diag.ClassOf(err) != class {
			t.Errorf("%s: got %v of class %v, want %q of class %v", what, err, diag.ClassOf(err), want, class)
		}
	}
	said := func(slots, m int) []byte { // the artifact, said to be of other slots
		other := expertGroup(slots, rows)
		other.Nodes[1].Op.M = m
		text, err := json.Marshal(&other)
		if err != nil {
			t.Fatal(err)
		}
		model, err := onnx.Parse(good.Code)
		if err != nil {
			t.Fatal(err)
		}
		model.Props[slices.IndexFunc(model.Props, func(p onnx.Prop) bool { return p.Key == keyGraph })].Value = string(text)
		return model.Marshal()
	}
	for _, other := range [][2]int{{2, rows}, {8, rows}, {slots, 2 * rows}} {
		artifact, _ := made(other[0], other[1])
		refused(fmt.Sprintf("%d slots of %d rows", other[0], other[1]/other[0]), artifact.Code, diag.ClassVerify,
			"another graph than the plan")
	}
	refused("said to be of fewer slots", said(2, rows), diag.ClassVerify, "another graph than the plan")
	refused("said to be of uneven slots", said(4, rows+1), diag.ClassInput, "want a multiple of experts 4")
	refused("no bytes", nil, diag.ClassInput, "empty")
	refused("half", good.Code[:len(good.Code)/2], diag.ClassInput, "unexpected EOF")
	half, err := onnx.Parse(good.Code)
	if err != nil {
		t.Fatal(err)
	}
	for i := range half.Graph.Nodes {
		for j := range half.Graph.Nodes[i].Attrs {
			if attr := &half.Graph.Nodes[i].Attrs[j]; attr.Name == "ep_cache_context" {
				attr.S = attr.S[:len(attr.S)/2]
			}
		}
	}
	refused("half a binary", half.Marshal(), diag.ClassRun, "")

	// The processor still computes.
	clear(y)
	if _, err := p.Run(e, b); err != nil || !bytes.Equal(mem.Bytes(y), emulated) {
		t.Errorf("after refusals the group computes other bits (%v)", err)
	}
}
