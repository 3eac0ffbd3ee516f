package opencl

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// BenchmarkMatMul multiplies rows by a matrix [1024,512] in every scheme, and reports the rate of the fastest run:
// other load on the machine makes the mean worthless.
func BenchmarkMatMul(b *testing.B) {
	for _, scheme := range op.SchemesOf(Name) {
		if scheme.Scales() > 0 { // the same products as those of its twin
			continue
		}
		for _, rows := range []int{1, 6, 48} {
			b.Run(fmt.Sprintf("%s/%d", scheme, rows), func(b *testing.B) {
				p := openFirst(b, nil)
				graph := op.Single(op.Op{Kind: op.MatMul, M: rows, K: 1024, N: 512, Scheme: scheme}, op.TilesLayout)
				weights := unitWeights(b, &graph)
				exe, err := p.Load(context.Background(), artifact(b, graph, nil), weights)
				if err != nil {
					b.Fatal(err)
				}
				defer exe.Close()

				best := fastestRun(b, p, exe, bindOperands(b, p, &graph)).Seconds()

				b.ReportMetric(float64(graph.Nodes[0].Op.Flops())/best/1e9, "GOP/s")
				b.ReportMetric(float64(len(weights[0].Bytes))/best/1e9, "GB/s")
			})
		}
	}
}

// fastestRun runs a call until the benchmark ends.
func fastestRun(b *testing.B, p *processor, exe driver.Executable, bindings *driver.Bindings) time.Duration {
	b.Helper()
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
	return best
}

// unitWeights are weights of a graph whose values are all 1.
func unitWeights(b *testing.B, graph *op.Graph) (weights driver.Weights) {
	b.Helper()
	for _, spec := range graph.Weights {
		size, err := pack.Bytes(spec)
		if err != nil {
			b.Fatal(err)
		}
		region, err := mem.Alloc(int(size), driver.Align)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { region.Close() })
		ones, err := pack.Floats(slices.Repeat([]float32{1}, spec.K*spec.N), spec.K, spec.N)
		if err != nil {
			b.Fatal(err)
		}
		if err := pack.Pack(region.Bytes(), spec, ones); err != nil {
			b.Fatal(err)
		}
		weights = append(weights, driver.Packed{Spec: spec, Bytes: region.Bytes()})
	}
	return weights
}

// bindOperands allocates the inputs and outputs of a graph of one operator.
func bindOperands(b *testing.B, p *processor, graph *op.Graph) *driver.Bindings {
	b.Helper()
	bind := func(list []op.Value) (views []driver.View) {
		for _, value := range list {
			buffer, err := p.Alloc(int64(value.Rows*value.Cols) * int64(value.Type.Bytes()))
			if err != nil {
				b.Fatal(err)
			}
			views = append(views, driver.View{
				Buffer: buffer,
				Type:   value.Type,
				Rows:   value.Rows,
				Cols:   value.Cols,
				Stride: value.Cols,
			})
		}
		return views
	}
	return &driver.Bindings{
		In:      bind(graph.Inputs),
		Out:     bind(graph.Outputs),
		Scalars: &driver.Scalars{Rows: graph.Nodes[0].Op.M},
	}
}
