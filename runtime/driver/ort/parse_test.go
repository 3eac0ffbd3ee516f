package ort

import (
	"bytes"
	"context"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// Bytes are refused as an artifact, or are a model that is written as the same bytes.
func FuzzParse(f *testing.F) {
	embed := op.Single(op.Op{Kind: op.Embed, M: 3, K: 7, N: 8, Table: op.BF16, Scale: 2}, "")
	estimate := op.Single(estimated, op.OnnxLayout)
	graphs := []*op.Graph{&embed, &estimate}
	for _, scheme := range capabilities(nil, signed, true).Schemes {
		graphs = append(graphs, chained(2, scheme, true))
	}
	for _, graph := range graphs {
		artifact, err := compile.New().Compile(context.Background(), *graph, nil, driver.Target{})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(artifact.Code)
		f.Add(bytes.ReplaceAll(artifact.Code, []byte("MatMul"), []byte("MatSum")))
		f.Add(bytes.ReplaceAll(artifact.Code, []byte(`"kind":"norm"`), []byte(`"kind":"clip"`)))
	}

	f.Fuzz(func(t *testing.T, code []byte) {
		parsed, err := parse(code)
		if err == nil && !bytes.Equal(parsed.onnx.Marshal(), code) {
			t.Fatal("the model is written as other bytes")
		}
	})
}
