package profiler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// FactRequest asks a compiler about one product: one graph for each of several numbers of rows,
// with the same weights.
type FactRequest struct {
	// name of the processor
	Proc string
	Op   op.Op // at M = Rows[0]
	Rows []int // ascending: a graph of its own each
	// Shared are those of Rows whose graphs share the weights in one binary, ascending; nil: none are asked for.
	Shared []int
}

// each calls visit for every answer that is asked for: of each graph alone, then of the binary that
// several share.
func (r *FactRequest) each(visit func(record.Facts) error) error {
	for _, rows := range r.Rows {
		operator := r.Op
		operator.M = rows
		if err := visit(record.Facts{Kind: record.CompilerFacts, Proc: r.Proc, Op: &operator}); err != nil {
			return err
		}
	}
	if len(r.Shared) < 2 {
		return nil
	}
	other := r.Op
	other.M = r.Shared[0]
	return visit(record.Facts{Kind: record.CompilerFacts, Proc: r.Proc, Op: &other, Rows: r.Shared})
}

// Keys returns the keys of the facts that are asked for.
func (r *FactRequest) Keys() (out []string) {
	_ = r.each(func(facts record.Facts) error { out = append(out, facts.Key()); return nil })
	return out
}

// sharedGraphs is how many graphs of one weight are compiled together, which shows what each graph
// but the first adds to the binary.
const sharedGraphs = 4

// FactRequests lists what to ask the compilers of a SoC's device (socs.SoC.Restricted) about a
// model: every whole product of an NPU whose graphs are compiled ahead of time, in every scheme,
// each shape once. Rows are 1, the buckets, the batches, and lengths: numbers of rows that prompts
// have, each with the next two multiples of 8 and of the processor's granularity.
func FactRequests(soc *socs.SoC, model *models.Model, want Want, lengths []int) ([]FactRequest, error) {
	list := &builder{soc: soc, seen: map[string]bool{}}
	if err := list.apply(model, want); err != nil {
		return nil, err
	}
	graph := model.Graph()
	var out []FactRequest
	for _, proc := range list.procs {
		if proc.Target == nil || proc.Target.Compiler == "" || proc.Kind != socs.KindNPU {
			continue
		}
		for i := range graph.Sections {
			sec := &graph.Sections[i]
			for j := range sec.Nodes {
				node := &sec.Nodes[j]
				operator := node.Ops[len(node.Ops)-1]
				if operator.Kind != op.MatMul || !proc.Executes(operator.Kind) {
					continue
				}
				// a node whose output has one row, such as the head, is only asked at one row
				rows := []int{1}
				if !slices.ContainsFunc(sec.Values, func(value models.Value) bool {
					return value.Rows1 && slices.Contains(node.Out, value.Name)
				}) {
					rows = factRows(list.buckets, want.Batches, lengths, max(1, proc.Tile.M))
				}
				for _, scheme := range list.schemesOf(node) {
					if !slices.Contains(proc.Schemes, scheme) {
						continue
					}
					operator.Scheme, operator.M, operator.Form = scheme, rows[0], ""
					request := FactRequest{Proc: proc.Name, Op: operator, Rows: rows,
						Shared: spread(rows, sharedGraphs)}
					if !slices.ContainsFunc(out, func(other FactRequest) bool {
						return other.Proc == request.Proc && other.Op == request.Op
					}) {
						out = append(out, request)
					}
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, diag.New(diag.ClassInput, "list graphs of model %q for SoC %q: no NPU there executes a product "+
			"in a scheme that the workload permits and is compiled ahead of time", model.Name, soc.Name).
			WithHint("permit one of the schemes that target: lists for the SoC's NPU")
	}
	return out, nil
}

// factRows returns the numbers of rows that a compiler is asked about, ascending.
func factRows(buckets, batches, lengths []int, tile int) []int {
	const unit = 8 // rows: what compilers are seen to work in
	out := slices.Concat([]int{1}, buckets, batches)
	for _, rows := range lengths {
		for _, step := range []int{unit, tile} {
			next := op.RoundUp(rows, step)
			out = append(out, rows, next, next+step)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// spread returns count elements of list, or all if there are fewer, evenly spaced and with the
// last; nil for less than two.
func spread(list []int, count int) []int {
	count = min(count, len(list))
	if count < 2 {
		return nil
	}
	var out []int
	for i := range count {
		out = append(out, list[(i+1)*len(list)/count-1])
	}
	return out
}

// FactOptions controls CompilerFacts.
type FactOptions struct {
	Compilers map[string]driver.GroupCompiler // by name: those that the targets ask for
	Seed      uint64                          // of weights: their values do not matter, but they must not repeat
	// called before each question with the number asked, of all, and the key; may be nil
	Progress func(done, all int, key string)
}

// FactReport is what CompilerFacts did.
type FactReport struct {
	// answers recorded now, and answers that the record had
	Added, Present int
	// graphs that the compiler refused
	Refused []*record.Facts
	// name and version, of the last answer
	Compiler string
}

// CompilerFacts asks the compilers and records every answer at once, so that an interrupted run
// continues where it stopped. A graph that the compiler refuses is recorded as refused. The answers
// hold no time of the device.
func CompilerFacts(
	ctx context.Context, soc *socs.SoC, requests []FactRequest, writer *record.Writer, options FactOptions,
) (FactReport, error) {
	var rep FactReport
	all, done := 0, 0
	for i := range requests {
		all += len(requests[i].Keys())
	}
	for i := range requests {
		request := &requests[i]
		target := soc.Processor(request.Proc).Target
		compiler := options.Compilers[target.Compiler]
		if compiler == nil {
			return rep, diag.New(diag.ClassUnavailable,
				"ask compiler %q about processor %q: this build has none of that name that compiles weights in",
				target.Compiler, request.Proc).
				WithHint("it has %s", strings.Join(slices.Sorted(maps.Keys(options.Compilers)), ", "))
		}
		err := request.each(func(known record.Facts) error {
			if err := ctx.Err(); err != nil {
				return diag.New(diag.ClassInterrupted, "ask compiler %q: %w", target.Compiler, err)
			}
			if options.Progress != nil {
				options.Progress(done, all, known.Key())
			}
			done++
			if writer.Set().LookupFacts(known.Key()) != nil {
				rep.Present++
				return nil
			}
			if err := askCompiler(ctx, compiler, target, &known, options.Seed); err != nil {
				return err
			}
			rep.Added++
			rep.Compiler = known.Compiler
			if known.Refused != "" {
				rep.Refused = append(rep.Refused, &known)
			}
			return writer.AppendFacts(&known)
		})
		if err != nil {
			return rep, err
		}
	}
	return rep, nil
}

// askCompiler compiles the graphs of said, with pseudo-random weights that they share, and fills in
// the compiler's answer.
func askCompiler(
	ctx context.Context, compiler driver.GroupCompiler, target *socs.Target, said *record.Facts, seed uint64,
) error {
	pieces, free, err := piecesOf(said, seed)
	defer free()
	if err != nil {
		return err
	}
	began := time.Now()
	got, err := compiler.CompileGroup(ctx, pieces, driver.Target{Proc: said.Proc, Options: target.Options()})
	took := time.Since(began)
	said.Options = target.Options()
	var refused *driver.Refused
	switch {
	// A refusal is an answer: planning must know that this graph does not exist.
	case errors.As(err, &refused):
		said.Refused = oneLine(err.Error())
		said.Compiler = compiler.Name() // a compiler that refuses does not say its version
		return nil
	case err != nil:
		return fmt.Errorf("ask compiler %q about %q: %w", compiler.Name(), said.Op.Key(), err)
	}
	said.Compiler = got.Compiler
	if !got.Cached {
		said.CompileMS = math.Round(float64(took.Microseconds())) / 1e3
	}
	for i := range got.Artifacts {
		facts := got.Artifacts[i].Facts
		said.SpillBytes = max(said.SpillBytes, facts["spill_bytes"])
		said.VTCMBytes, said.Arch = max(said.VTCMBytes, facts["vtcm_bytes"]), facts["arch"]
		said.Bytes += facts["bytes"]
	}
	if len(got.Shared) > 0 {
		said.Bytes += int64(len(got.Shared))
	}
	return nil
}

// piecesOf makes a graph for each number of rows. All of them share the weights: one binary holds them once. free closes
// the memory of the weights, also after an error.
func piecesOf(said *record.Facts, seed uint64) (pieces []driver.Piece, free func(), err error) {
	rows := said.Rows
	if rows == nil {
		rows = []int{said.Op.M}
	}
	var regions []*mem.Region
	free = func() {
		for _, region := range slices.Backward(regions) {
			region.Close()
		}
	}
	var weights []driver.Packed
	for i, count := range rows {
		operator := *said.Op
		operator.M = count
		piece := driver.Piece{Name: fmt.Sprintf("graph%d", i), Graph: op.Single(operator, op.OnnxLayout)}
		if i == 0 {
			for _, spec := range piece.Graph.Weights {
				packed, region, err := noiseWeight(spec, seed)
				if err != nil {
					return nil, free, fmt.Errorf("weights of %q: %w", operator.Key(), err)
				}
				regions = append(regions, region)
				weights = append(weights, packed)
			}
		}
		piece.Weights = weights
		pieces = append(pieces, piece)
	}
	return pieces, free, nil
}

// noiseWeight packs pseudo-random numbers.
func noiseWeight(spec op.WeightSpec, seed uint64) (driver.Packed, *mem.Region, error) {
	bytes, err := pack.Bytes(spec)
	if err != nil {
		return driver.Packed{}, nil, err
	}
	region, err := mem.Alloc(int(bytes), 64)
	if err != nil {
		return driver.Packed{}, nil, err
	}
	if err := pack.Pack(region.Bytes(), spec, noise{spec, seed}); err != nil {
		return driver.Packed{}, nil, errors.Join(err, region.Close())
	}
	return driver.Packed{Spec: spec, Bytes: region.Bytes()[:bytes:bytes]}, region, nil
}

// noise is a matrix of pseudo-random values in -1/16..1/16 that do not repeat, because a compiler
// stores equal weights once. The steps of a grid are all equal, as a grid wants it.
type noise struct {
	spec op.WeightSpec
	seed uint64
}

// Shape is that of the weight it stands for.
func (x noise) Shape() (k, n int) { return x.spec.K, x.spec.N }

// Read computes the values of rows [k0,k1) and columns [n0,n1), column by column: each follows from its place and the
// seed.
func (x noise) Read(dst []float32, k0, k1, n0, n1 int) error {
	i := 0
	for column := n0; column < n1; column++ {
		for k := k0; k < k1; k++ {
			if x.spec.Name == "steps" {
				dst[i] = 1.0 / op.GridMax
			} else {
				dst[i] = float32(int32(mix(x.seed^uint64(k)<<32^uint64(column)))) / (1 << 35)
			}
			i++
		}
	}
	return nil
}

// mix spreads a number over 64 bits (splitmix64).
func mix(hash uint64) uint64 {
	hash += 0x9e3779b97f4a7c15
	hash = (hash ^ hash>>30) * 0xbf58476d1ce4e5b9
	hash = (hash ^ hash>>27) * 0x94d049bb133111eb
	return hash ^ hash>>31
}

// oneLine joins text into one line of at most 500 bytes.
func oneLine(text string) string {
	const most = 500
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}
