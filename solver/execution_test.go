package solver

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/workload"
)

// What a solved program takes on the simulated machine's clock is what was predicted: prices,
// strategies, lowering and timeline against the executor and the driver, which share no code with them.
func TestExecutionTakesAsLongAsPredicted(t *testing.T) {
	require.Slow(t)
	m := demo(t)
	s := twoCores(t, 0.6)
	s.Joint[0].BandwidthGBps = 12 // of the 16 that both would read alone
	s.Processors[0].BandwidthGBps, s.Processors[1].BandwidthGBps, s.Processors[2].BandwidthGBps = 10, 6, 9
	w := workload.Default()
	w.Prompts, w.OutputTokens, w.Buckets = []workload.Prompt{{Tokens: 256, Share: 1}}, 128, []int{64, 256}
	for i := range s.Processors {
		proc := &s.Processors[i]
		proc.Schemes, proc.Layouts["w16"] = append(proc.Schemes, op.A8OQ8C), op.TilesLayout
		proc.Sim.Schemes[op.A8OQ8C] = proc.Sim.Schemes[op.A8TQ8C]
	}
	cal := observed(m, invented(t, m, rand.New(rand.NewPCG(7, 8)), op.A8TQ8C))
	for name, scheme := range map[string]op.Scheme{"stored": op.A32W32, "quantised": op.A8TQ8C, "shadow": op.A8OQ8C} {
		t.Run(name, func(t *testing.T) {
			w.Schemes = workload.Schemes{Prefill: []op.Scheme{scheme}, Decode: []op.Scheme{scheme}}
			w.Batches = []int{3, 8}
			in := Input{Model: m, SoC: s, Costs: batchCosts(t, s, m, w.Batches, scheme), Workload: w, Calibration: cal,
				Engine: exact.Engine{}}
			p := solve(t, in).Plan
			split := 0
			for _, d := range p.Decisions {
				if len(d.Shares) > 1 {
					split++
				}
			}
			if split < 10 {
				t.Fatalf("%d decisions divide their operator: nothing to wait for", split)
			}
			c, err := emit.NewCalibrated(context.Background(), p, m, cal, []driver.Compiler{sim.NewCompiler(s)})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			x, err := executor.Open(context.Background(), p, c, executor.Options{Drivers: []driver.Driver{sim.New(s)}})
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			forward := func(tokens int) (ns int64) {
				err := x.Do(context.Background(), func(c *executor.Control) error {
					ids := make([]int32, tokens)
					got, err := c.Forward(ids, executor.WantLast, func(int, []float32) error { return nil })
					if ns = got.NS; !got.Virtual {
						t.Error("the time is not virtual")
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				return ns
			}
			compare := func(program string, got int64) {
				want := prediction(t, p, program).PlanNS
				if off := math.Abs(float64(got)/float64(want) - 1); off > 0.01 {
					t.Errorf("%s: %d ns on the simulated machine, predicted %d", program, got, want)
				}
			}
			compare("prefill@256", forward(256))
			forward(63) // decode is predicted for the middle of the answer
			compare("decode", forward(1))
			// Calls behind others attend to what these have left: a whole chunk, and a part of one.
			caller, err := NewCaller(in, p)
			if err != nil {
				t.Fatal(err)
			}
			position := 320
			for _, rows := range []int{256, 44, 1} {
				position += rows
				want, err := caller.NS(rows, position)
				if got := forward(rows); err != nil || math.Abs(float64(got)/float64(want)-1) > 0.03 {
					t.Errorf("%d rows at %d: %d ns on the simulated machine, predicted %d (%v)", rows, position, got, want, err)
				}
			}
			if _, err := caller.NS(0, 5); err == nil {
				t.Error("a call of no rows is predicted")
			}
			for _, n := range w.Batches {
				tokens := make([]executor.Token, n)
				x.Reset()
				err := x.Do(context.Background(), func(c *executor.Control) error {
					for i := range tokens {
						tokens[i].Sequence = i
						if _, err := c.Extend(i, make([]int32, 319), executor.WantNone, nil); err != nil {
							return err
						}
					}
					got, err := c.Step(tokens, nil)
					compare(lower.ProgramName(n, true), got.NS)
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// observed adds to a calibration that every channel of what enters a product reaches 1.
func observed(m *models.Model, cal *calibration.Calibration) *calibration.Calibration {
	for _, sec := range m.Graph().Sections {
		for _, n := range sec.Nodes {
			for l := 0; l < max(1, sec.Layers) && n.Ops[0].HasScheme(); l++ {
				k := n.Ops[0].K
				cal.Activations = append(cal.Activations, calibration.Activation{Class: sec.Name + "." + n.Name, Layer: l,
					K: k, AbsMax: slices.Repeat([]float32{1}, k)})
			}
		}
	}
	return cal
}

// A static processor that writes whole buffers executes its gathered, padded and row shares, also when a
// call has fewer rows than the program.
func TestExecutionOnStaticProcessor(t *testing.T) {
	require.Slow(t)
	m := demo(t)
	s := twoCores(t, 1)
	s.Processors = s.Processors[:2]
	npu := s.Processor("c1")
	npu.Kind, npu.Cores, npu.StaticShapes, npu.DynamicRows = socs.KindNPU, nil, true, false
	npu.StridedInput, npu.StridedOutput, npu.WeightRanges, npu.Tile.M = false, false, false, 32
	npu.Kinds, npu.KV = []op.Kind{op.Norm, op.QuantRows, op.MatMul, op.GLU, op.Add, op.Copy}, nil
	w := workload.Default()
	w.Buckets, w.Batches = []int{48, 256}, []int{40}
	p := solve(t, Input{Model: m, SoC: s, Costs: batchCosts(t, s, m, w.Batches, op.A32W32), Workload: w}).Plan
	gathers, padded := 0, 0
	for _, g := range p.Program.Graphs {
		if g.Graph.Nodes[0].Op.Kind == op.Copy {
			gathers++
		}
	}
	for _, d := range p.Decisions {
		for _, sh := range d.Shares {
			if sh.PadRows > 0 {
				padded++
			}
		}
	}
	if gathers == 0 || padded == 0 {
		t.Fatalf("%d gathers and %d padded shares: nothing to execute", gathers, padded)
	}
	logits := func(p *planir.Plan, drivers []driver.Driver, compiler driver.Compiler, tokens []int32) []float32 {
		return logitsOf(t, m, p, drivers, compiler, tokens)
	}
	// The reference: everything on one core.
	g := m.Graph()
	single := *p
	single.Batches = nil
	var err error
	if single.Decisions, err = lower.Trivial(&g, "c0", []int{1, 48, 256}, p.MaxContext, p.KV, func(string, int) op.Scheme { return op.A32W32 }); err != nil {
		t.Fatal(err)
	}
	if err := lower.Lower(&single, &g); err != nil {
		t.Fatal(err)
	}
	tokens := make([]int32, 256+20)
	for i := range tokens {
		tokens[i] = int32(i * 7 % 2048)
	}
	for _, n := range []int{256, 48, 40, 100, len(tokens)} {
		drivers := []driver.Driver{sim.New(s)}
		got, want := logits(p, drivers, sim.NewCompiler(s), tokens[:n]), logits(&single, drivers, sim.NewCompiler(s), tokens[:n])
		worst := 0.0
		for i := range want {
			worst = max(worst, math.Abs(float64(got[i]-want[i])))
		}
		if len(got) != len(want) || !(worst < 1e-3) {
			t.Errorf("%d tokens: logits differ by %g", n, worst)
		}
	}
	// A batch that is not full: what the processor computes in rows that nobody uses reaches nobody.
	static := 0
	for _, d := range p.Decisions {
		for _, sh := range d.Shares {
			if d.Rows == 40 && sh.Proc == "c1" {
				static++
			}
		}
	}
	if static == 0 {
		t.Fatal("the batch has nothing for the static processor")
	}
	c, err := emit.NewContent(context.Background(), p, m, []driver.Compiler{sim.NewCompiler(s)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	x, err := executor.Open(context.Background(), p, c, executor.Options{Drivers: []driver.Driver{sim.New(s)}})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	lengths := []int{20, 3, 50}
	together := make([][]float32, len(lengths))
	err = x.Do(context.Background(), func(c *executor.Control) error {
		var next []executor.Token
		for i, n := range lengths {
			if _, err := c.Extend(7*i, tokens[:n], executor.WantNone, nil); err != nil {
				return err
			}
			next = append(next, executor.Token{Sequence: 7 * i, ID: tokens[n]})
		}
		_, err := c.Step(next, func(i int, l []float32) error {
			together[i] = slices.Clone(l)
			return nil
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range lengths {
		want := logits(&single, []driver.Driver{sim.New(s)}, sim.NewCompiler(s), tokens[:n+1])[n*m.Vocab:]
		for k := range want {
			if d := math.Abs(float64(together[i][k] - want[k])); !(d < 1e-3) {
				t.Errorf("sequence %d of a batch: logits differ by %g", i, d)
				break
			}
		}
	}
}

func logitsOf(t *testing.T, m *models.Model, p *planir.Plan, drivers []driver.Driver, compiler driver.Compiler, tokens []int32) []float32 {
	t.Helper()
	c, err := emit.NewContent(context.Background(), p, m, []driver.Compiler{compiler})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	x, err := executor.Open(context.Background(), p, c, executor.Options{Drivers: drivers})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	var out []float32
	err = x.Do(context.Background(), func(c *executor.Control) error {
		_, err := c.Forward(tokens, executor.WantAll, func(_ int, l []float32) error {
			out = append(out, l...)
			return nil
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Standard pieces, one after the other on a static processor, alone or with what is left on another, compute what one
// processor does, also when a call has fewer rows.
func TestExecutionInPieces(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), withNPU(t, nil)
	w := workload.Default()
	w.Buckets = []int{48, 256, 352}
	w.Prompts, w.OutputTokens = []workload.Prompt{{Tokens: 352, Share: 1}}, 16
	c := costs(t, s, m, op.A32W32)
	g := m.Graph()
	for _, strategy := range []planir.Strategy{planir.Pipe, planir.ActivationDivide} {
		t.Run(string(strategy), func(t *testing.T) {
			ses := prepared(t, Input{Model: m, SoC: s, Costs: c, Workload: w})
			var x solved
			pieces := map[int]int{} // matrices with several pieces on the processor, by rows
			for _, rows := range ses.want.Rows() {
				pr, err := ses.program(rows, ses.assigned(rows))
				if err != nil {
					t.Fatal(err)
				}
				var list []planir.Decision
				for _, in := range pr.instances {
					pick := make([]int, len(in.candidates))
					for i := range pick {
						several := func(c price.Candidate) bool {
							n := 0
							for _, sh := range c.Shares {
								if sh.Proc == "c1" {
									n++
								}
							}
							return c.Strategy == strategy && n > 1
						}
						if k := slices.IndexFunc(in.candidates[i], several); k >= 0 {
							pick[i] = k
							pieces[rows]++
						}
					}
					list = append(list, in.decisions(pick)...)
				}
				x.decisions, x.reports = append(x.decisions, list), append(x.reports, planir.Solve{})
			}
			p, err := ses.buildPlan(x)
			if err != nil {
				t.Fatal(err)
			}
			if pieces[352] < 4 || strategy == planir.Pipe && (pieces[256] < 4 || pieces[48] < 4) {
				t.Fatalf("matrices in several pieces, by rows: %v", pieces)
			}
			if found := check.Plan(p, m, s); len(found) > 0 {
				t.Fatal(found)
			}
			single := *p
			if single.Decisions, err = lower.Trivial(&g, "c0", []int{1, 48, 256, 352}, p.MaxContext, p.KV, func(string, int) op.Scheme { return op.A32W32 }); err != nil {
				t.Fatal(err)
			}
			if err := lower.Lower(&single, &g); err != nil {
				t.Fatal(err)
			}
			tokens := make([]int32, 352+30)
			for i := range tokens {
				tokens[i] = int32(i * 11 % 2048)
			}
			for _, n := range []int{352, 300, 48, 40, 33, 20, len(tokens)} {
				drivers := []driver.Driver{sim.New(s)}
				got, want := logitsOf(t, m, p, drivers, sim.NewCompiler(s), tokens[:n]), logitsOf(t, m, &single, drivers, sim.NewCompiler(s), tokens[:n])
				worst := 0.0
				for i := range want {
					worst = max(worst, math.Abs(float64(got[i]-want[i])))
				}
				if len(got) != len(want) || !(worst < 1e-3) {
					t.Errorf("%d tokens: logits differ by %g", n, worst)
				}
			}
		})
	}
}

// A group of like cores is a processor like others: alone, and beside an unlike one with which it has shares, a program
// takes on the virtual clock what was predicted.
func TestExecutionOfGroups(t *testing.T) {
	require.Slow(t)
	m := demo(t)
	for _, unlike := range []bool{false, true} {
		s := twoCores(t, 1)
		for i := range s.Processors {
			s.Processors[i].PeakGops = map[string]float64{"f32": []float64{100, 100, 180}[i]}
		}
		if unlike {
			gpu := s.Processors[1]
			gpu.Name, gpu.Select, gpu.Kind, gpu.Cores, gpu.PeakGops = "gpu", "gpu", socs.KindGPU, nil, nil
			s.Processors = append(s.Processors, gpu)
			s.Joint = append(s.Joint, socs.Joint{Processors: []string{"c01", "gpu"}, BandwidthGBps: 17})
			for _, other := range []string{"c0", "c1", "c01"} {
				s.Links = append(s.Links, socs.Link{From: other, To: "gpu", HandoverUS: 2}, socs.Link{From: "gpu", To: other, HandoverUS: 2})
			}
		}
		w := workload.Default()
		w.Prompts, w.OutputTokens, w.Buckets = []workload.Prompt{{Tokens: 256, Share: 1}}, 128, []int{256}
		p := solve(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: w}).Plan
		used := map[string]int{}
		for _, d := range p.Decisions {
			for _, share := range d.Shares {
				if d.Rows == 256 { // steps of decode are short, and may have shares of like cores
					used[share.Proc]++
				}
			}
		}
		if used["c01"] < 10 || unlike != (used["gpu"] > 5) || used["c1"] > 0 {
			t.Errorf("unlike processor = %v: decisions by processor %v, want most of the group, and of an unlike one", unlike, used)
		}
		if found := check.Plan(p, m, s); len(found) > 0 {
			t.Fatal(found)
		}
		c, err := emit.NewContent(t.Context(), p, m, []driver.Compiler{sim.NewCompiler(s)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		x, err := executor.Open(t.Context(), p, c, executor.Options{Drivers: []driver.Driver{sim.New(s)}})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		err = x.Do(t.Context(), func(c *executor.Control) error {
			for _, call := range []struct {
				program string
				tokens  int
			}{{"prefill@256", 256}, {"", 63}, {"decode", 1}} { // decode is predicted for the middle of the answer
				took, err := c.Forward(make([]int32, call.tokens), executor.WantLast, func(int, []float32) error { return nil })
				if err != nil {
					return err
				}
				if call.program == "" {
					continue
				}
				want := prediction(t, p, call.program).PlanNS
				if off := math.Abs(float64(took.NS)/float64(want) - 1); off > 0.01 {
					t.Errorf("unlike processor = %v: %s took %d ns on the simulated machine, predicted %d", unlike, call.program,
						took.NS, want)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
