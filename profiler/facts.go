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

// FactRequest asks a compiler about one product: graphs of the same weights at several numbers of rows.
type FactRequest struct {
	Proc string
	Op   op.Op // at M = Rows[0]
	Rows []int // ascending: a graph of its own each
	// Shared are those of Rows whose graphs share the weights in one binary, ascending; nil: none are asked for.
	Shared []int
}

// each calls f for everything that is asked for: every graph alone, then the binary that several share.
func (r *FactRequest) each(f func(record.Facts) error) error {
	for _, m := range r.Rows {
		o := r.Op
		o.M = m
		if err := f(record.Facts{Kind: record.CompilerFacts, Proc: r.Proc, Op: &o}); err != nil {
			return err
		}
	}
	if len(r.Shared) < 2 {
		return nil
	}
	o := r.Op
	o.M = r.Shared[0]
	return f(record.Facts{Kind: record.CompilerFacts, Proc: r.Proc, Op: &o, Rows: r.Shared})
}

// Keys are those of the facts that are asked for.
func (r *FactRequest) Keys() (out []string) {
	_ = r.each(func(f record.Facts) error { out = append(out, f.Key()); return nil })
	return out
}

// sharedGraphs is how many graphs of one weight are compiled together, to see what each but the first adds.
const sharedGraphs = 4

// FactRequests lists what to ask the compilers of a SoC's device (socs.SoC.Restricted) about model m: every product of an NPU that
// is compiled ahead of time, in every scheme, at one row, at the buckets and batches, and at lengths: numbers of rows that
// prompts have, each with the multiples of 8 and of the processor's granularity above it. Whole weights are asked for, and the
// same shape once.
func FactRequests(s *socs.SoC, m *models.Model, w Want, lengths []int) ([]FactRequest, error) {
	b := &builder{soc: s, seen: map[string]bool{}}
	if err := b.want(m, w); err != nil {
		return nil, err
	}
	g := m.Graph()
	var out []FactRequest
	for _, p := range b.procs {
		if p.Target == nil || p.Target.Compiler == "" || p.Kind != socs.KindNPU {
			continue
		}
		for i := range g.Sections {
			sec := &g.Sections[i]
			for j := range sec.Nodes {
				n := &sec.Nodes[j]
				o := n.Ops[len(n.Ops)-1]
				if o.Kind != op.MatMul || !p.Executes(o.Kind) {
					continue
				}
				rows := []int{1}
				if !slices.ContainsFunc(sec.Values, func(v models.Value) bool { return v.Rows1 && slices.Contains(n.Out, v.Name) }) {
					rows = factRows(b.buckets, w.Batches, lengths, max(1, p.Tile.M))
				}
				for _, x := range b.schemesOf(n) {
					if !slices.Contains(p.Schemes, x) {
						continue
					}
					o.Scheme, o.M, o.Form = x, rows[0], ""
					r := FactRequest{Proc: p.Name, Op: o, Rows: rows, Shared: spread(rows, sharedGraphs)}
					if !slices.ContainsFunc(out, func(y FactRequest) bool { return y.Proc == r.Proc && y.Op == r.Op }) {
						out = append(out, r)
					}
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, diag.New(diag.ClassInput, "list graphs of model %q for SoC %q: no NPU there executes a product in a scheme that the workload permits and is compiled ahead of time", m.Name, s.Name).
			WithHint("permit one of the schemes that target: lists for the SoC's NPU")
	}
	return out, nil
}

// factRows are the numbers of rows that a compiler is asked about.
func factRows(buckets, batches, lengths []int, tile int) []int {
	const unit = 8 // rows: what compilers are seen to work in
	out := slices.Concat([]int{1}, buckets, batches)
	for _, n := range lengths {
		for _, step := range []int{unit, tile} {
			next := socs.Round(n, step)
			out = append(out, n, next, next+step)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// spread is n of list or fewer, the last and largest among them; nil when that is less than two.
func spread(list []int, n int) []int {
	n = min(n, len(list))
	if n < 2 {
		return nil
	}
	var out []int
	for i := range n {
		out = append(out, list[(i+1)*len(list)/n-1])
	}
	return out
}

// FactOptions are what asking a compiler takes.
type FactOptions struct {
	Bakers   map[string]driver.Baker // by name: those that the targets ask for
	Seed     uint64                  // of weights: their values do not matter, but that they do not repeat does
	Progress func(done, all int, key string)
}

// FactReport is what came of it.
type FactReport struct {
	Added, Present int
	Refused        []*record.Facts
	Compiler       string
}

// CompilerFacts asks and records every answer at once, so that an interrupted run goes on where it stopped. A graph that the
// compiler refuses is recorded as refused. No time of the device comes of it.
func CompilerFacts(ctx context.Context, s *socs.SoC, requests []FactRequest, w *record.Writer, o FactOptions) (FactReport, error) {
	var rep FactReport
	all, done := 0, 0
	for i := range requests {
		all += len(requests[i].Keys())
	}
	for i := range requests {
		r := &requests[i]
		t := s.Processor(r.Proc).Target
		baker := o.Bakers[t.Compiler]
		if baker == nil {
			return rep, diag.New(diag.ClassUnavailable, "ask compiler %q about processor %q: this build has none of that name that compiles weights in", t.Compiler, r.Proc).
				WithHint("it has %s", strings.Join(slices.Sorted(maps.Keys(o.Bakers)), ", "))
		}
		err := r.each(func(f record.Facts) error {
			if err := ctx.Err(); err != nil {
				return diag.New(diag.ClassInterrupted, "ask compiler %q: %w", t.Compiler, err)
			}
			if o.Progress != nil {
				o.Progress(done, all, f.Key())
			}
			done++
			if w.Set().LookupFacts(f.Key()) != nil {
				rep.Present++
				return nil
			}
			if err := askCompiler(ctx, baker, t, &f, o.Seed); err != nil {
				return err
			}
			rep.Added++
			rep.Compiler = f.Compiler
			if f.Refused != "" {
				rep.Refused = append(rep.Refused, &f)
			}
			return w.AppendFacts(&f)
		})
		if err != nil {
			return rep, err
		}
	}
	return rep, nil
}

// askCompiler fills in what the compiler says.
func askCompiler(ctx context.Context, b driver.Baker, t *socs.Target, f *record.Facts, seed uint64) error {
	rows := f.Rows
	if rows == nil {
		rows = []int{f.Op.M}
	}
	var pieces []driver.Piece
	for i, m := range rows {
		o := *f.Op
		o.M = m
		p := driver.Piece{Name: fmt.Sprintf("graph%d", i), Graph: op.Single(o, op.OnnxLayout)}
		if i > 0 {
			p.Weights = pieces[0].Weights
		} else {
			for _, spec := range p.Graph.Weights {
				bytes, err := pack.Bytes(spec)
				if err != nil {
					return fmt.Errorf("weights of %q: %w", o.Key(), err)
				}
				region, err := mem.Alloc(int(bytes), 64)
				if err != nil {
					return fmt.Errorf("weights of %q: %w", o.Key(), err)
				}
				defer region.Close()
				if err := pack.Pack(region.Bytes(), spec, noise{spec, seed}); err != nil {
					return fmt.Errorf("weights of %q: %w", o.Key(), err)
				}
				p.Weights = append(p.Weights, driver.Packed{Spec: spec, Bytes: region.Bytes()[:bytes:bytes]})
			}
		}
		pieces = append(pieces, p)
	}
	began := time.Now()
	got, err := b.Bake(ctx, pieces, driver.Target{Proc: f.Proc, Options: t.Options()})
	took := time.Since(began)
	f.Options = t.Options()
	var refused *driver.Refused
	switch {
	case errors.As(err, &refused):
		f.Refused = oneLine(err.Error())
		f.Compiler = b.Name() // who refuses does not say its version
		return nil
	case err != nil:
		return fmt.Errorf("ask compiler %q about %q: %w", b.Name(), f.Op.Key(), err)
	}
	f.Compiler = got.Compiler
	if !got.Cached {
		f.CompileMS = math.Round(float64(took.Microseconds())) / 1e3
	}
	for i := range got.Artifacts {
		facts := got.Artifacts[i].Facts
		f.SpillBytes = max(f.SpillBytes, facts["spill_bytes"])
		f.VTCMBytes, f.Arch = max(f.VTCMBytes, facts["vtcm_bytes"]), facts["arch"]
		f.Bytes += facts["bytes"]
	}
	if len(got.Shared) > 0 {
		f.Bytes += int64(len(got.Shared))
	}
	return nil
}

// noise is a matrix of pseudo-random values in -1/16..1/16 that do not repeat: a compiler stores equal weights once. Steps of a
// grid are all alike.
type noise struct {
	spec op.WeightSpec
	seed uint64
}

func (x noise) Shape() (k, n int) { return x.spec.K, x.spec.N }

func (x noise) Read(dst []float32, k0, k1, n0, n1 int) error {
	i := 0
	for n := n0; n < n1; n++ {
		for k := k0; k < k1; k++ {
			if x.spec.Name == "steps" {
				dst[i] = 1.0 / op.GridMax
			} else {
				dst[i] = float32(int32(mix(x.seed^uint64(k)<<32^uint64(n)))) / (1 << 35)
			}
			i++
		}
	}
	return nil
}

// mix spreads a number over 64 bits (splitmix64).
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func oneLine(text string) string {
	const most = 500
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}
