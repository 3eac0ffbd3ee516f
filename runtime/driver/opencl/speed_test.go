package opencl

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// BenchmarkMatMul multiplies M rows by a matrix [1024,512] in every scheme and reports the best rate of all runs: short
// ones, because other load on the machine makes the mean worthless.
func BenchmarkMatMul(b *testing.B) {
	const k, n = 1024, 512
	for _, scheme := range op.SchemesOf(Name) {
		if scheme.Scales() > 0 { // the same products as those of its twin
			continue
		}
		for _, rows := range []int{1, 6, 48} {
			b.Run(fmt.Sprintf("%s/%d", scheme, rows), func(b *testing.B) {
				p := openFirst(b, nil)
				graph := op.Single(op.Op{Kind: op.MatMul, M: rows, K: k, N: n, Scheme: scheme}, op.TilesLayout)
				size, err := pack.Bytes(graph.Weights[0])
				if err != nil {
					b.Fatal(err)
				}
				region, err := mem.Alloc(int(size), 64)
				if err != nil {
					b.Fatal(err)
				}
				defer region.Close()
				exe, err := p.Load(context.Background(), artifact(b, graph, nil),
					driver.Weights{{Spec: graph.Weights[0], Bytes: region.Bytes()}})
				if err != nil {
					b.Fatal(err)
				}
				defer exe.Close()
				bindings := &driver.Bindings{Scalars: &driver.Scalars{Rows: rows}}
				bind := func(list []op.Value) (views []driver.View) {
					for _, value := range list {
						buffer, err := p.Alloc(int64(value.Rows*value.Cols) * int64(value.Type.Bytes()))
						if err != nil {
							b.Fatal(err)
						}
						views = append(views, driver.View{Buffer: buffer, Type: value.Type, Rows: value.Rows,
							Cols: value.Cols, Stride: value.Cols})
					}
					return views
				}
				bindings.In, bindings.Out = bind(graph.Inputs), bind(graph.Outputs)
				if _, err := p.Run(exe, bindings); err != nil { // the device compiles at the first launch
					b.Fatal(err)
				}
				best := time.Hour
				for b.Loop() {
					began := time.Now()
					if _, err := p.Run(exe, bindings); err != nil {
						b.Fatal(err)
					}
					best = min(best, time.Since(began))
				}
				b.ReportMetric(float64(graph.Nodes[0].Op.Flops())/best.Seconds()/1e9, "GOP/s")
				b.ReportMetric(float64(size)/best.Seconds()/1e9, "GB/s")
			})
		}
	}
}
