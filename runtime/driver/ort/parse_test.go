package ort

import (
	"bytes"
	"context"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// Whatever the bytes of an artifact are, they are refused, or a model that is written as the same bytes.
func FuzzParse(f *testing.F) {
	embed := op.Single(op.Op{Kind: op.Embed, M: 3, K: 7, N: 8, Table: op.BF16, Scale: 2}, "")
	estimate := op.Single(op.Op{Kind: op.Estimate, M: 40, Heads: 4, KVHeads: 2, HeadDim: 16, Context: 96, KV: op.F32,
		Block: op.SparseBlock}, op.OnnxLayout)
	graphs := []*op.Graph{&embed, &estimate}
	for _, s := range capabilities(nil, signed, true).Schemes {
		graphs = append(graphs, chained(2, s, true))
	}
	for _, g := range graphs {
		a, err := compile.New().Compile(context.Background(), *g, nil, driver.Target{})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(a.Code)
		f.Add(bytes.ReplaceAll(a.Code, []byte("MatMul"), []byte("MatSum")))
		f.Add(bytes.ReplaceAll(a.Code, []byte(`"kind":"norm"`), []byte(`"kind":"clip"`)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err == nil && !bytes.Equal(m.onnx.Marshal(), b) {
			t.Fatal("the model is written as other bytes")
		}
	})
}
