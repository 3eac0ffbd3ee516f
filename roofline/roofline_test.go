package roofline

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
)

func openSoC(t testing.TB, name string) *socs.SoC {
	t.Helper()
	s, err := socs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// header is that of a simulated record of s.
func header(t testing.TB, s *socs.SoC) record.Header {
	t.Helper()
	d, err := s.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return record.Header{Schema: record.Schema, SoC: s.Name, SoCDigest: d, Simulated: true, Hetc: "test"}
}

// noise draws samples around a time.
type noise struct {
	rng *rand.Rand
	cv  float64
	n   int
}

func (n noise) samples(ns float64) []float64 {
	if n.cv == 0 {
		return []float64{ns}
	}
	out := make([]float64, n.n)
	for i := range out {
		out[i] = ns * math.Exp(n.cv*n.rng.NormFloat64())
	}
	return out
}

func add(t testing.TB, set *record.Set, m record.Measurement) {
	t.Helper()
	m.Unit, m.Loops, m.Simulated = "ns", 1, set.Header.Simulated
	if err := set.Add(&m); err != nil {
		t.Fatal(err)
	}
}

func matmul(m, k, n int, scheme op.Scheme) op.Op {
	return op.Op{Kind: op.MatMul, M: m, K: k, N: n, Scheme: scheme}
}

// shapes are the weights of llama-3-8b.
var shapes = [][2]int{{4096, 6144}, {4096, 4096}, {4096, 28672}, {14336, 4096}}

var powers = []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}

// simulated measures every shape at every m on a processor, exactly as the simulation says.
func simulated(t testing.TB, s *socs.SoC, proc string, scheme op.Scheme, ms []int, n noise) *record.Set {
	t.Helper()
	set := record.NewSet(header(t, s))
	for _, w := range shapes {
		for _, m := range ms {
			o := matmul(m, w[0], w[1], scheme)
			x, err := sim.NS(s, proc, o)
			if err != nil {
				t.Fatal(err)
			}
			add(t, set, record.Measurement{Kind: record.Op, Proc: proc, Op: &o, Layout: "n32", Samples: n.samples(float64(x))})
		}
	}
	return set
}

// truth holds out random M of the sampled shapes, at least 5 % from every sampled M.
func truth(t testing.TB, s *socs.SoC, proc string, scheme op.Scheme, ms []int, count int) *record.Set {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 7))
	set := record.NewSet(header(t, s))
	for set.Len() < count {
		w := shapes[rng.IntN(len(shapes))]
		m := 1 + rng.IntN(512)
		near := false
		for _, x := range ms {
			near = near || math.Abs(float64(m)/float64(x)-1) < 0.05
		}
		o := matmul(m, w[0], w[1], scheme)
		x, err := sim.NS(s, proc, o)
		if err != nil {
			t.Fatal(err)
		}
		r := record.Measurement{Kind: record.Op, Proc: proc, Op: &o, Layout: "n32", Samples: []float64{float64(x)}, Simulated: true, Unit: "ns", Loops: 1}
		if near || set.Has(r.Key()) {
			continue
		}
		add(t, set, r)
	}
	return set
}

func report(t *testing.T, name string, q Quality) {
	t.Helper()
	var b strings.Builder
	for _, m := range q.Misses[:min(3, len(q.Misses))] {
		b.WriteString("\n    " + m.Key + " " + string(m.Predicted.Source))
		b.WriteString(" error " + percent(m.Error))
	}
	t.Logf("%-40s n %d, within 10 %%: %s, 15 %%: %s, MAPE %s, covered %s%s", name, q.N, percent(q.Within10), percent(q.Within15), percent(q.MAPE), percent(q.Covered), b.String())
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 2, 64) + " %" }

// Known processors, without noise: the steps are recovered and everything between samples is met.
func TestSimulatedTruth(t *testing.T) {
	for _, name := range socs.Catalog() {
		s := openSoC(t, name)
		for i := range s.Processors {
			p := &s.Processors[i]
			for _, scheme := range p.Schemes {
				set := simulated(t, s, p.Name, scheme, powers, noise{})
				c, err := Fit(s, set)
				if err != nil {
					t.Fatal(err)
				}
				q, err := Evaluate(c, truth(t, s, p.Name, scheme, powers, 200))
				if err != nil {
					t.Fatal(err)
				}
				report(t, name+" "+p.Name+" "+string(scheme), q)
				f := c.Families[0]
				t.Logf("     step %v setup %v ops %v bytes %v p %v err %v %v", f.Step, f.SetupNS, f.OpsPerNS, f.BytesPerNS, f.Sharpness, f.ErrM, f.ErrShape)
			}
		}
	}
}
