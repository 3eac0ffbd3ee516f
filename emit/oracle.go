package emit

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// oracle computes references in float32, to which the results of compiled graphs are compared. It runs a driver's
// processor, which belongs to one thread; that thread starts with the first job.
type oracle struct {
	driver  driver.Driver
	options map[string]string           // of the processor
	jobs    chan func(driver.Processor) // nil before the first job
	failed  error                       // why the processor did not start
}

// newOracle computes with a driver, nil where no sample is made. Nothing is opened before the first
// job.
func newOracle(d driver.Driver) *oracle { return &oracle{driver: d} }

// onThread calls work with the processor, on its thread.
func (o *oracle) onThread(ctx context.Context, work func(driver.Processor) error) error {
	if o.jobs == nil && o.failed == nil {
		o.failed = o.start(ctx)
	}
	if o.failed != nil {
		return o.failed
	}
	done := make(chan error, 1)
	o.jobs <- func(proc driver.Processor) { done <- work(proc) }
	return <-done
}

// start opens the processor with the most cores and begins its thread.
func (o *oracle) start(ctx context.Context) error {
	devices, err := o.driver.Devices(ctx)
	if err != nil {
		return err
	}
	widest := slices.MaxFunc(devices, func(a, b driver.Device) int { return len(a.Cores) - len(b.Cores) })
	proc, err := o.driver.Open(ctx, driver.Config{Select: widest.Select, Options: o.options})
	if err != nil {
		return err
	}
	// The thread attaches, reports, and then executes jobs until the channel is closed.
	jobs, begun := make(chan func(driver.Processor)), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: see driver.Processor
		err := proc.Attach()
		begun <- err
		for work := range jobs {
			work(proc)
		}
		_ = proc.Close() // it holds memory only
	}()
	o.jobs = jobs
	return <-begun
}

// close ends the thread.
func (o *oracle) close() {
	if o.jobs != nil {
		close(o.jobs)
	}
}

// sample is values of a graph's inputs, and what float32 makes of them.
type sample struct {
	in   [][]byte
	want [][]float32 // of each output; nil for one that float32 does not have
}

// fullScale is which part of the largest value that a grid holds a sample is brought to.
const fullScale = 0.75

// sample makes one of a graph with its weights. The numbers follow from the graph alone, so that every run tries the
// same ones. Inputs are made smaller until nothing leaves the range that the calibration gave it: results on a grid
// would saturate there, which says nothing about the compiler.
func (o *oracle) sample(ctx context.Context, graph *op.Graph, weights driver.Weights) (*sample, error) {
	if graph.Estimate() != nil {
		return codesOf(graph)
	}
	if graph.State() {
		return nil, diag.New(diag.ClassInfeasible, "it uses the cache, and nothing says what that held")
	}
	float, err := newFloatGraph(graph, weights)
	defer float.close()
	if err != nil {
		return nil, err
	}
	// Scale the inputs down until all results fit their grids. Each round aims at fullScale of the largest.
	base, err := pseudoRandom(graph, float.graph.Inputs)
	if err != nil {
		return nil, err
	}
	scale := 1.0
	for range 12 {
		in := make([][]float32, len(base))
		for i := range base {
			in[i] = make([]float32, len(base[i]))
			for at, value := range base[i] {
				in[i][at] = float32(float64(value) * scale * float64(float.amplitude[i]))
			}
		}
		made := &sample{in: float.bind(graph, in)} // rounds what enters as 8 bits
		out, err := o.run(ctx, float, in)
		if err != nil {
			return nil, err
		}
		if worst := float.gridOverflow(out); worst > 1 {
			scale *= fullScale / worst
			continue
		}
		made.want = make([][]float32, len(graph.Outputs))
		for i := range graph.Outputs {
			if at := float.outputs[i]; at >= 0 {
				made.want[i] = out[at]
			}
		}
		return made, nil
	}
	return nil, diag.New(diag.ClassRun, "no inputs were found whose results stay within the ranges of the calibration")
}

// codesOf returns a sample of the launches of an estimate of scores: codes of queries and keys, half as large as the
// largest are, and their products.
func codesOf(graph *op.Graph) (*sample, error) {
	launches := graph.Launches(op.F32)
	values, err := pseudoRandom(graph, launches.Inputs)
	if err != nil {
		return nil, err
	}
	made := &sample{}
	for _, row := range values {
		codes := make([]byte, len(row))
		for i := range codes {
			row[i] = float32(math.RoundToEven(float64(63 * row[i])))
			codes[i] = byte(128 + int(row[i]))
		}
		made.in = append(made.in, codes)
	}
	estimate := graph.Estimate()
	launch, dim := estimate.Launch(), estimate.HeadDim
	products := make([]float32, 0, estimate.KVHeads*launch.Rows*launch.Keys)
	for line := range estimate.KVHeads * launch.Rows {
		query, keys := values[0][line*dim:][:dim], values[1][line/launch.Rows*launch.Keys*dim:]
		for key := range launch.Keys {
			sum := float32(0) // of integers below 2^24 each: as exact as the bound asks
			for i, code := range query {
				sum += code * keys[key*dim+i]
			}
			products = append(products, sum)
		}
	}
	made.want = [][]float32{products}
	return made, nil
}

// pseudoRandom draws numbers between -1 and 1 for values, seeded by the graph.
func pseudoRandom(graph *op.Graph, values []op.Value) ([][]float32, error) {
	text, err := json.Marshal(graph)
	if err != nil {
		return nil, err
	}
	seed := fnv.New64a()
	_, _ = seed.Write(text)
	rng := rand.New(rand.NewPCG(seed.Sum64(), 0))
	out := make([][]float32, len(values))
	for i, value := range values {
		out[i] = make([]float32, value.Rows*value.Cols)
		for at := range out[i] {
			out[i][at] = float32(2*rng.Float64() - 1)
		}
	}
	return out, nil
}

// run executes the graph in float32 and returns its outputs.
func (o *oracle) run(ctx context.Context, float *floatGraph, in [][]float32) (out [][]float32, err error) {
	// The driver's artifact is the graph itself, so no compiler is needed.
	code, err := json.Marshal(&float.graph)
	if err != nil {
		return nil, err
	}
	err = o.onThread(ctx, func(proc driver.Processor) error {
		exe, err := proc.Load(ctx, driver.Artifact{Driver: o.driver.Name(), Code: code}, float.weights)
		if err != nil {
			return err
		}
		defer exe.Close()
		views := viewSet{}
		defer views.close()
		rows := float.graph.Rows()
		bindings := driver.Bindings{Scalars: &driver.Scalars{Rows: rows, KVLen: rows, Seq: rows}}
		if bindings.In, err = views.alloc(proc, float.graph.Inputs); err != nil {
			return err
		}
		if bindings.Out, err = views.alloc(proc, float.graph.Outputs); err != nil {
			return err
		}
		for i, view := range bindings.In {
			for at, value := range in[i] {
				binary.LittleEndian.PutUint32(view.Buffer.Bytes()[4*at:], math.Float32bits(value))
			}
		}
		if _, err := proc.Run(exe, &bindings); err != nil {
			return err
		}
		for _, view := range bindings.Out {
			out = append(out, number.Floats(view.Buffer.Bytes()[:4*view.Rows*view.Cols]))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("compute the reference in float32: %w", err)
	}
	return out, nil
}

// viewSet is the memory of values by their names. A value that is changed in place has one.
type viewSet map[string]driver.View

// alloc returns the views of values [Rows,Cols].
func (s viewSet) alloc(proc driver.Processor, values []op.Value) (out []driver.View, err error) {
	for _, value := range values {
		view, ok := s[value.Name]
		if !ok {
			buf, err := proc.Alloc(4 * int64(value.Rows) * int64(value.Cols))
			if err != nil {
				return nil, err
			}
			view = driver.View{Buffer: buf, Type: op.F32, Rows: value.Rows, Cols: value.Cols, Stride: value.Cols}
			s[value.Name] = view
		}
		out = append(out, view)
	}
	return out, nil
}

// close frees the memory of all values.
func (s viewSet) close() {
	for _, view := range s {
		_ = view.Buffer.Close() // memory only
	}
}
