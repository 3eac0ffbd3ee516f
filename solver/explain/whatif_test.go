package explain

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// lossy is a calibration with random losses of every class in 8 bit.
func lossy(t *testing.T, m *models.Model, r *rand.Rand) *calibration.Calibration {
	t.Helper()
	digest, err := m.Digest()
	if err != nil {
		t.Fatal(err)
	}
	c := &calibration.Calibration{Schema: calibration.Schema, Model: calibration.Model{Name: m.Name, Digest: digest}}
	for _, sec := range m.Graph().Sections {
		for _, n := range sec.Nodes {
			if o := n.Ops[len(n.Ops)-1]; o.HasScheme() && !n.Exact {
				c.Losses = append(c.Losses,
					calibration.Loss{Class: sec.Name + "." + n.Name, Scheme: op.A8TQ8C, KL: r.Float64() / 100})
			}
		}
	}
	return c
}

// whatIfCase draws limits that a plan keeps, some of which bind.
func whatIfCase(t *testing.T, seed uint64) solver.Input {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 21))
	in := limitedCase(t, seed)
	in.Calibration = lossy(t, in.Model, r)
	in.Workload.Quality.MaxKL = workload.KLLimit{Prefill: 0.02, Decode: 0.02}
	in.Workload.Minimise = []problem.Measure{problem.Time, problem.Energy, problem.Memory}[seed%3]
	free := solve(t, in)
	in.MaxMemory = free.Plan.Memory.Total * int64(96+r.IntN(8)) / 100
	if in.Workload.Minimise != problem.Energy {
		in.Workload.Limits.EnergyMJ = free.ExpectedNJ / 1e6 * (0.9 + 0.2*r.Float64())
	}
	if in.Workload.Minimise != problem.Time {
		in.Workload.Limits.PrefillMS = slowest("prefill")(free) * (0.9 + 0.2*r.Float64())
	}
	return in
}

// change makes of a limit what a user would write instead: another value, or nothing for "".
func change(t *testing.T, in solver.Input, key, value string) (out solver.Input, ok bool) {
	t.Helper()
	out = in
	out.Prices = nil
	number, bytes := 0.0, unit.Bytes(0)
	if first, _, _ := strings.Cut(value, " "); value != "" {
		var err error
		if number, err = strconv.ParseFloat(first, 64); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(value, "B") {
			if bytes, err = unit.ParseBytes(strings.ReplaceAll(value, " ", "")); err != nil {
				t.Fatal(err)
			}
		}
	}
	edit := func(do func(*workload.Workload)) { out.Workload = workload.Edited(in.Workload, do) }
	switch key {
	case "--max-memory":
		out.MaxMemory = int64(bytes)
	case workload.KeyEnergy:
		edit(func(w *workload.Workload) { w.Limits.EnergyMJ = number })
	case workload.KeyPrefill:
		edit(func(w *workload.Workload) { w.Limits.PrefillMS = number })
	case workload.KeyAddress + "c1":
		edit(func(w *workload.Workload) {
			w.Limits.AddressBytes = map[string]unit.Bytes{"c1": bytes}
			if value == "" {
				w.Limits.AddressBytes = nil
			}
		})
	case "quality.max_kl":
		if value == "" {
			number = workload.LargestKL
		}
		edit(func(w *workload.Workload) { w.Quality.MaxKL = workload.KLLimit{Prefill: number, Decode: number} })
	default:
		return out, false
	}
	return out, true
}

// What explain says of a limit is what solving with the changed workload gives.
func TestWhatIfIsWhatSolvingGives(t *testing.T) {
	require.Slow(t)
	binding, steps := 0, 0
	for seed := range uint64(4) {
		in := whatIfCase(t, seed)
		list, base, err := LimitsOf(t.Context(), in)
		if err != nil {
			t.Logf("seed %d: %v", seed, err)
			continue
		}
		value := func(r *solver.Result) float64 {
			switch in.Workload.Minimise {
			case problem.Energy:
				return r.ExpectedNJ
			case problem.Memory:
				return float64(r.Plan.Memory.Total)
			}
			return r.ExpectedNS
		}
		if got, _ := base.Minimised(); got != value(solve(t, in)) {
			t.Errorf("seed %d: as it is %v, solved %v", seed, got, value(solve(t, in)))
		}
		now, _ := base.Minimised()
		for _, effect := range list {
			without, ok := change(t, in, effect.Key, "")
			if !ok {
				continue
			}
			free := value(solve(t, without))
			if binds := free < better*now; binds != effect.Binds {
				t.Errorf("seed %d, %s: binds %v, and the least %s without it is %v of %v", seed, effect.Key, effect.Binds,
					in.Workload.Minimise, free, now)
			}
			if effect.Free != nil {
				binding++
				if got, _ := effect.Free.Minimised(); got != free {
					t.Errorf("seed %d, %s: without it %v, solved %v", seed, effect.Key, got, free)
				}
			}
			if effect.Step == nil {
				continue
			}
			at, isNumber := strings.CutPrefix(effect.Step.What, "at ")
			if !isNumber {
				continue
			}
			steps++
			other, _ := change(t, in, effect.Key, at)
			if got, _ := effect.Step.Minimised(); got != value(solve(t, other)) {
				t.Errorf("seed %d, %s at %s: %v, solved %v", seed, effect.Key, at, got, value(solve(t, other)))
			}
		}
	}
	t.Logf("%d limits bind, %d have a next step", binding, steps)
	if binding == 0 || steps == 0 {
		t.Errorf("%d limits bind, %d have a next step: the cases test nothing", binding, steps)
	}
}
