package executor_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// folds is a calibration with factors for every group and layer of the model, which draw returns one by one.
func folds(t testing.TB, m *models.Model, draw func() float32) *calibration.Calibration {
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
	for _, group := range g.Folds() {
		layers := m.Layers
		if group.Name == "head.norm" {
			layers = 1
		}
		for layer := range layers {
			fold := calibration.Fold{Group: group.Name, Layer: layer}
			for range group.K {
				fold.Factors = append(fold.Factors, draw())
			}
			cal.Folds = append(cal.Folds, fold)
		}
	}
	if err := cal.Validate(); err != nil {
		t.Fatal(err)
	}
	return cal
}

// folded is p with the calibration's folds.
func folded(t testing.TB, p *planir.Plan, m *models.Model, cal *calibration.Calibration) *planir.Plan {
	t.Helper()
	q := *p
	digest, err := cal.Digest()
	if err != nil {
		t.Fatal(err)
	}
	q.Inputs = []planir.Input{{Kind: planir.CalibrationInput, Digest: digest}}
	q.Folds = cal.Groups()
	g := m.Graph()
	if err := lower.Lower(&q, &g); err != nil {
		t.Fatal(err)
	}
	if err := check.Plan(&q, m, nil).Err(); err != nil {
		t.Fatal(err)
	}
	return &q
}

// calibrated is a machine of a plan that was made with a calibration.
func calibrated(t *testing.T, m *models.Model, p *planir.Plan, cal *calibration.Calibration) *executor.Machine {
	t.Helper()
	return machineWith(t, m, p, cal, executor.Options{})
}

// Folding changes no float32 result: with powers of two not a bit, with any other factors no more than rounding does.
// This holds for every architecture, some of them divided over two processors.
func TestFoldsChangeNothing(t *testing.T) {
	require.Slow(t)
	a, b := cores(t)
	groups := 0
	for i, config := range archDirs(t) {
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			rng := rand.New(rand.NewPCG(1, 2))
			powers := folds(t, m, func() float32 { return float32(math.Ldexp(1, rng.IntN(13)-6)) })
			any := folds(t, m, func() float32 { return float32(math.Pow(10, 2*rng.Float64()-1)) })
			groups += len(powers.Groups())
			ids := tokens(rng, m.Vocab, 33)
			setups := []archSetup{{name: "reference", procs: []planir.Proc{proc("ref", a, "reference")}}}
			if i%4 == 0 {
				setups = append(setups, archSetup{name: "pairs", procs: pairOn(a, b), layout: byPairs})
			}
			for _, setup := range setups {
				p := makePlan(t, m, planSpec{
					procs: setup.procs, rows: []int{1, 16}, context: 64, scheme: op.A32W32, layout: setup.layout,
				})
				want := allLogits(t, machine(t, m, p, executor.Options{}), ids)

				byPowers := allLogits(t, calibrated(t, m, folded(t, p, m, powers), powers), ids)
				if !slices.Equal(byPowers, want) {
					t.Errorf("%s: powers of two change logits by %g", setup.name, maxDiff(byPowers, want))
				}
				byAny := allLogits(t, calibrated(t, m, folded(t, p, m, any), any), ids)
				if d := maxDiff(byAny, want); !(d <= 1e-4) {
					t.Errorf("%s: factors of 0.1 to 10 change logits by %g, want at most 1e-4", setup.name, d)
				}
			}
		})
	}
	if groups < 100 && !raceEnabled {
		t.Errorf("%d groups in all architectures", groups)
	}
}

// A layer without factors is not folded, and neither are the others' factors used for it.
func TestFoldsOfSomeLayers(t *testing.T) {
	m := open(t)
	s0, _ := cores(t)
	cal := folds(t, m, func() float32 { return 3 })
	cal.Folds = slices.DeleteFunc(cal.Folds, func(f calibration.Fold) bool {
		return f.Layer%2 == 1 || f.Group == "head.norm"
	})
	p := makePlan(t, m, planSpec{
		procs: []planir.Proc{proc("ref", s0, "reference")}, rows: []int{1, 16}, context: 32,
		scheme: op.A32W32,
	})
	ids := []int32{1, 20, 300, 4, 5, 6, 7, 8}
	want := allLogits(t, machine(t, m, p, executor.Options{}), ids)

	q := folded(t, p, m, cal)
	if fmt.Sprint(q.Folds) != "[layers.attn_norm layers.ffn_gate_up layers.ffn_norm]" {
		t.Errorf("folds %v", q.Folds)
	}
	if d := maxDiff(allLogits(t, calibrated(t, m, q, cal), ids), want); !(d <= 1e-4) || d == 0 {
		t.Errorf("logits differ by %g, want a little", d)
	}
}
