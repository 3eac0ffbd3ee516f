package emit

import (
	"bytes"
	"context"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"

	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

const demo = "../testdata/models/tiny-llama-kjv"

func openModel(t *testing.T, dir string) *models.Model {
	t.Helper()
	m, err := models.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// calibrate makes up a calibration of m: mean squares and directions that differ by channel, and two folds.
func calibrate(t *testing.T, m *models.Model, rank int) *calibration.Calibration {
	t.Helper()
	digest, err := m.Digest()
	if err != nil {
		t.Fatal(err)
	}
	cal := &calibration.Calibration{
		Schema: calibration.Schema, Model: calibration.Model{Name: m.Name, Digest: digest},
		Text: calibration.Text{SHA256: digest, Tokens: 16, Windows: 2, WindowTokens: 8},
	}
	g := m.Graph()
	for _, s := range g.Sections {
		for _, n := range s.Nodes {
			if !n.Ops[0].HasScheme() {
				continue
			}
			for l := s.First; l < s.First+max(1, s.Layers); l++ {
				a := calibration.Activation{Class: s.Name + "." + n.Name, Layer: l, K: n.Ops[0].K, Rows: 16}
				values := make([]float32, a.K*rank)
				for k := range a.K {
					x := float32(1+(k*7+l)%13) / 4
					a.AbsMax, a.MeanSquare = append(a.AbsMax, 4*x), append(a.MeanSquare, x*x)
					for r := range rank {
						values[k*rank+r] = x * float32((k*(r+3)+l)%5-2) / float32(2*rank)
					}
				}
				a.Summarise()
				for i := range a.Outliers {
					a.Outliers[i].Share = 0.5
				}
				a.Directions = values
				a.Directions.Round()
				cal.Activations = append(cal.Activations, a)
			}
		}
	}
	for _, f := range g.Folds()[1:3] {
		x := calibration.Fold{Group: f.Name, Layer: 1}
		for k := range f.K {
			x.Factors = append(x.Factors, float32(1+k%4)/2)
		}
		cal.Folds = append(cal.Folds, x)
	}
	if err := cal.Validate(); err != nil {
		t.Fatal(err)
	}
	return cal
}

// planOf is a plan on one processor, or with the down projection divided along K over two.
func planOf(t *testing.T, m *models.Model, cal *calibration.Calibration, scheme op.Scheme, divided bool) *planir.Plan {
	t.Helper()
	digest, err := m.Digest()
	if err != nil {
		t.Fatal(err)
	}
	proc := func(name string, core int) planir.Proc {
		p := planir.Proc{
			Name: name, Kind: "cpu", Driver: "host", Select: "0", Cores: []int{core}, Set: capability.Set{
				Tile: capability.Tile{K: pack.BlockK, N: pack.TileN}, Schemes: op.Schemes, Layouts: map[string]string{},
				DynamicRows: true, StridedInput: true, StridedOutput: true, WeightRanges: true,
			},
		}
		for _, s := range op.Schemes {
			p.Layouts[s.Weight()] = pack.N32
		}
		return p
	}
	p := &planir.Plan{
		Schema: planir.Schema, Model: planir.ModelRef{Name: m.Name, Digest: digest}, SoC: planir.SoCRef{Name: "test", Control: "a"},
		MaxContext: 32, KV: op.F32, Procs: []planir.Proc{proc("a", 0), proc("b", 1)},
	}
	if cal != nil {
		d, err := cal.Digest()
		if err != nil {
			t.Fatal(err)
		}
		p.Inputs, p.Folds = []planir.Input{{Kind: planir.CalibrationInput, Digest: d}}, cal.Groups()
	}
	g := m.Graph()
	if p.Decisions, err = lower.Trivial(&g, "a", []int{1, 16}, 32, op.F32, func(string, int) op.Scheme { return scheme }); err != nil {
		t.Fatal(err)
	}
	if divided {
		for _, rows := range []int{1, 16} {
			d := p.DecisionFor("layers.ffn_down", rows)
			d.Axis, d.Strategy = planir.AxisK, planir.Paired
			d.Shares = []planir.Share{{Proc: "a", To: 256}, {Proc: "b", From: 256, To: m.FFN}}
		}
	}
	if err := lower.Lower(p, &g); err != nil {
		t.Fatal(err)
	}
	if err := planir.Check(p).Err(); err != nil {
		t.Fatal(err)
	}
	return p
}

func contentOf(t *testing.T, p *planir.Plan, m *models.Model, cal *calibration.Calibration) *Content {
	t.Helper()
	c, err := NewCalibrated(context.Background(), p, m, cal, []driver.Compiler{hostcompiler.New()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// packedBytes is every blob, one behind the other.
func packedBytes(t *testing.T, c *Content) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, b := range c.plan.Program.WeightBlobs() {
		if err := c.writeBlob(&out, b); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func TestCalibratedIsDeterministic(t *testing.T) {
	require.Slow(t)
	m := openModel(t, demo)
	cal := calibrate(t, m, 3)
	for _, scheme := range []op.Scheme{op.A8TQ4B32, op.A8TQ6C} {
		p := planOf(t, m, cal, scheme, false)
		plain := packedBytes(t, contentOf(t, planOf(t, m, nil, scheme, false), m, nil))
		var first []byte
		for _, procs := range []int{1, 2, 3} {
			old := runtime.GOMAXPROCS(procs)
			b := packedBytes(t, contentOf(t, p, m, cal))
			runtime.GOMAXPROCS(old)
			if first == nil {
				first = b
			}
			if !bytes.Equal(b, first) {
				t.Errorf("%s: bytes differ with %d cores", scheme, procs)
			}
		}
		if len(plain) != len(first) || bytes.Equal(plain, first) {
			t.Errorf("%s: %d bytes with a calibration and %d without, equal: %v", scheme, len(first), len(plain),
				bytes.Equal(plain, first))
		}
	}
}

// A weight that is divided along K has the values of the whole.
func TestCalibratedShares(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 3)
	values := func(divided bool) []float32 {
		c := contentOf(t, planOf(t, m, cal, op.A8TQ4B32, divided), m, cal)
		var out []float32
		for _, b := range c.plan.Program.WeightBlobs() {
			for _, pl := range b.Packs {
				if pl.Pack.Weight != "layers.ffn_down" || pl.Layer != 1 {
					continue
				}
				data, err := c.packedWeight(pl)
				if err != nil {
					t.Fatal(err)
				}
				v := make([]float32, (pl.Pack.K1-pl.Pack.K0)*pl.Pack.N1)
				if err := pack.Unpack(v, pl.Pack.Spec(), data); err != nil {
					t.Fatal(err)
				}
				out = append(out, v...)
			}
		}
		return out
	}
	whole := values(false)
	if len(whole) != m.FFN*m.Hidden || !slices.Equal(whole, values(true)) {
		t.Errorf("%d values, and others when divided", len(whole))
	}
}

// Contents share packed weights only where both pack the same.
func TestCalibratedSharesMemory(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 0)
	shared := func(scheme op.Scheme, weight string, layer int) bool {
		a, b := contentOf(t, planOf(t, m, nil, scheme, false), m, nil), contentOf(t, planOf(t, m, cal, scheme, false), m, cal)
		b.ShareWith(a)
		for _, blob := range b.plan.Program.WeightBlobs() {
			for _, pl := range blob.Packs {
				if pl.Pack.Weight == weight && max(0, pl.Layer) == layer {
					if _, err := b.packedWeight(pl); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		return len(a.inMemory) == 1 && len(b.inMemory) == 0
	}
	for _, c := range []struct {
		scheme op.Scheme
		weight string
		want   bool
	}{
		{op.A32W32, "layers.qkv", true}, {op.A32W32, "layers.ffn_gate_up", false}, {op.A32W32, "layers.ffn_norm", false},
		{op.A8TQ8C, "layers.qkv", true}, {op.A8TQ4B32, "layers.qkv", false}, {op.A8TQ4B32, "layers.attn_norm", true},
	} {
		if got := shared(c.scheme, c.weight, 1); got != c.want {
			t.Errorf("%s in %s: shared %v, want %v", c.weight, c.scheme, got, c.want)
		}
	}
}

// Static scales are what the calibration saw, divided by what is folded, and the same whoever executes what.
func TestStaticScales(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 3)
	cal.Clips = []calibration.Clip{{Class: "layers.ffn_down", Share: 0.5}}
	for _, divided := range []bool{false, true} {
		c := contentOf(t, planOf(t, m, cal, op.A8SQ8C, divided), m, cal)
		found := 0
		for _, b := range c.plan.Program.WeightBlobs() {
			for _, pl := range b.Packs {
				w := c.weight(pl)
				if w.ScaleOf == "" {
					continue
				}
				found++
				data, err := c.packedWeight(pl)
				if err != nil {
					t.Fatal(err)
				}
				var got [1]float32
				if err := pack.Unpack(got[:], pl.Pack.Spec(), data); err != nil {
					t.Fatal(err)
				}
				a := cal.Activation(w.ScaleOf, max(0, pl.Layer))
				want := float32(0)
				f := cal.Fold(w.FoldRows, max(0, pl.Layer))
				for i, v := range a.AbsMax {
					if f != nil {
						v /= f.Factors[i]
					}
					want = max(want, v/127)
				}
				if w.ScaleOf == "layers.ffn_down" {
					want /= 2
				}
				if math.Abs(float64(got[0]/want)-1) > 1e-6 {
					t.Errorf("scale of %q in layer %d is %v, want %v", w.ScaleOf, pl.Layer, got[0], want)
				}
			}
		}
		if want := 4*m.Layers + 1; found != want {
			t.Errorf("%d static scales, want %d", found, want)
		}
	}
}

// Steps are twice what the calibration saw, over the grid, as it is after folding, and every share has those of its
// columns.
func TestSteps(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 3)
	g := m.Graph()
	for i := range cal.Activations {
		a := &cal.Activations[i]
		for _, s := range g.Sections {
			for _, n := range s.Nodes {
				if s.Name+"."+n.Name == a.Class {
					for j := range g.Weight(n.W[0]).N {
						a.OutMax = append(a.OutMax, float32(1+(j*7+i)%50))
					}
				}
			}
		}
	}
	folded := 0
	for _, divided := range []bool{false, true} {
		p := planOf(t, m, cal, op.A16SQ8C, false)
		if divided {
			for _, rows := range []int{1, 16} {
				d := p.DecisionFor("layers.ffn_gate_up", rows)
				d.Axis, d.Strategy = planir.AxisCols, planir.WeightCentric
				d.Shares = []planir.Share{{Proc: "a", To: 256}, {Proc: "b", From: 256, To: 2 * m.FFN}}
			}
			if err := lower.Lower(p, &g); err != nil {
				t.Fatal(err)
			}
			if err := planir.Check(p).Err(); err != nil {
				t.Fatal(err)
			}
		}
		c := contentOf(t, p, m, cal)
		found := 0
		for _, b := range c.plan.Program.WeightBlobs() {
			for _, pl := range b.Packs {
				w := c.weight(pl)
				if w.ScaleOf == "" {
					continue
				}
				found++
				data, err := c.packedWeight(pl)
				if err != nil {
					t.Fatal(err)
				}
				n := pl.Pack.N1 - pl.Pack.N0
				got := make([]float32, 2*n)
				if err := pack.Unpack(got, pl.Pack.Spec(), data); err != nil {
					t.Fatal(err)
				}
				a := cal.Activation(w.ScaleOf, max(0, pl.Layer))
				var in, out float32
				f := cal.Fold(w.FoldRows, max(0, pl.Layer))
				for i, v := range a.AbsMax {
					if f != nil {
						v /= f.Factors[i]
					}
					in = max(in, v)
				}
				d := cal.Fold(w.FoldCols, max(0, pl.Layer))
				for j, v := range a.OutMax {
					if d != nil { // gate and up in turn, a block of each
						folded++
						width := g.Weight("layers.ffn_gate_up").Interleave[0]
						if j/width%2 == w.FoldSource {
							v /= d.Factors[j/width/2*width+j%width]
						}
					}
					out = max(out, v)
				}
				for i, v := range got {
					want := 2 * in / 32767
					if i >= n {
						want = 2 * out / 32767
					}
					if math.Abs(float64(v/want)-1) > 1e-6 {
						t.Fatalf("step %d of %q in layer %d is %v, want %v", i, w.ScaleOf, pl.Layer, v, want)
					}
				}
			}
		}
		want := 4*m.Layers + 1
		if divided {
			want += m.Layers
		}
		if found != want {
			t.Errorf("%d steps, want %d", found, want)
		}
	}
	if folded == 0 {
		t.Error("nothing was folded behind a product")
	}
	p := planOf(t, m, cal, op.A16SQ8C, false)
	d := p.DecisionFor("layers.ffn_down", 16)
	d.Axis, d.Strategy = planir.AxisK, planir.Paired
	d.Shares = []planir.Share{{Proc: "a", To: 256}, {Proc: "b", From: 256, To: m.FFN}}
	if err := lower.Lower(p, &g); err == nil || !strings.Contains(err.Error(), `scheme "a16s/q8c" cannot be divided along "k"`) {
		t.Errorf("divided along k: %v", err)
	}
}

func TestCalibrationRefused(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 0)
	other := calibrate(t, m, 1)
	short := calibrate(t, m, 0)
	short.Folds[0].Factors = short.Folds[0].Factors[:7]
	narrow := calibrate(t, m, 0)
	narrow.Activations[0].AbsMax, narrow.Activations[0].MeanSquare, narrow.Activations[0].K = narrow.Activations[0].AbsMax[:9], narrow.Activations[0].MeanSquare[:9], 9
	foreign := calibrate(t, m, 0)
	foreign.Model.Digest = strings.Repeat("0", 64)
	silent := calibrate(t, m, 0)
	silent.Activations = slices.DeleteFunc(silent.Activations, func(a calibration.Activation) bool { return a.Class == "layers.ffn_down" && a.Layer == 2 })
	for _, c := range []struct {
		name        string
		with, given *calibration.Calibration
		want        string
	}{
		{"no results", other, other, `computes in layer 0, and steps of its results are wanted`},
		{"no range", silent, silent, `"layers.ffn_down" in layer 2, whose static scale`},
		{"missing", cal, nil, "none is given"},
		{"not needed", nil, cal, "without one"},
		{"another", cal, other, "want "},
		{"of another model", foreign, foreign, "000000000000"},
		{"factors", short, short, "7 factors in layer 1, want 256"},
		{"channels", narrow, narrow, "9 channels in layer 0, want 256"},
	} {
		scheme := op.A8TQ4B32
		if c.with == silent {
			scheme = op.A8SQ8C
		}
		if c.with == other {
			scheme = op.A16SQ4C
		}
		p := planOf(t, m, c.with, scheme, false)
		x, err := NewCalibrated(context.Background(), p, m, c.given, []driver.Compiler{hostcompiler.New()})
		if err == nil {
			for _, b := range p.Program.WeightBlobs() {
				if err = x.writeBlob(&bytes.Buffer{}, b); err != nil {
					break
				}
			}
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// Several static scales are packed as the calibration has them; one without them is refused with what to do.
func TestSeveralStaticScales(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 3)
	bare := *cal
	for i := range cal.Activations {
		a := &cal.Activations[i]
		top := a.StaticScale(nil, 1)
		cal.Scales = append(cal.Scales, calibration.Scales{Class: a.Class, Layer: a.Layer, Values: []float32{top / 4, top}}, calibration.Scales{Class: a.Class, Layer: a.Layer, Values: []float32{1, 2, 3, 4}})
	}
	if err := cal.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, x := range []*calibration.Calibration{cal, &bare} {
		c, found := contentOf(t, planOf(t, m, x, op.A8S2Q8C, true), m, x), 0
		for _, b := range c.plan.Program.WeightBlobs() {
			for _, pl := range b.Packs {
				w := c.weight(pl)
				if w.ScaleOf == "" {
					continue
				}
				found++
				data, err := c.packedWeight(pl)
				if x == &bare {
					if hints := diag.HintsOf(err); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "2 static scales of what enters") || len(hints) != 1 || !strings.Contains(hints[0], "--schemes a8s2/q8c") {
						t.Fatalf("without scales: %v, hints %q", err, hints)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				got := make([]float32, 2)
				if err := pack.Unpack(got, pl.Pack.Spec(), data); err != nil {
					t.Fatal(err)
				}
				if want := cal.RowScales(w.ScaleOf, max(0, pl.Layer), 2); !slices.Equal(got, want) {
					t.Errorf("%s in layer %d: %v, want %v", w.Name, pl.Layer, got, want)
				}
			}
		}
		if found == 0 {
			t.Error("no scales were found")
		}
	}
}
