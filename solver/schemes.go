package solver

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// The choice of schemes. A class is a weight, whose products all have one scheme; an assignment gives every class one.
// Prefill and decode are phases with an assignment each. The head has decode's scheme in both, unless the workload
// lists those of prefill.
//
// permit (schemes_permit.go) finds out which schemes each class of a phase may have. list (schemes_list.go) enumerates
// the assignments within the limit of quality, each with a lower bound of its cost. search (schemes_search.go) then
// goes through pairs of them, least bound first.

// assignment is a scheme for every class.
type assignment []op.Scheme

// key returns a text that is equal for equal assignments.
func (a assignment) key() string {
	var b strings.Builder
	for _, scheme := range a {
		b.WriteString(string(scheme))
		b.WriteByte(' ')
	}
	return b.String()
}

// phase is a part of the workload whose programs share one assignment.
type phase struct {
	name       string             // "prefill" or "decode"
	rows       []int              // of its programs
	weights    []float64          // of each program in the objective
	permits    []op.Scheme        // that the workload permits
	asked      bool               // the workload lists the schemes
	max        float64            // KL that may be lost, 0: no limit
	options    [][]op.Scheme      // by class; empty where the phase does not decide it
	points     []point            // within the limit, least bound first
	objectives map[string]float64 // objective by assignment, solved
}

// point is an assignment as indices into a phase's options, with what is known of it without solving.
type point struct {
	pick  []uint8
	bound float64 // the objective is at least that, in ns
	kl    float64
}

// Limits of the choice of schemes.
const (
	maxAssignments = 1 << 19 // of a phase
	maxPairs       = 1 << 22 // of assignments that are looked at
	maxTried       = 4096    // pairs that are solved
	maxFruitless   = 256     // pairs in a row that are solved within a bound of memory, and are no better
)

// uniform returns one scheme for every class.
func (s *schemeChoice) uniform(scheme op.Scheme) assignment {
	schemes := make(assignment, len(s.classes))
	for i := range schemes {
		schemes[i] = scheme
	}
	return schemes
}

// expand returns the graph at a number of rows under an assignment.
func (s *schemeChoice) expand(rows int, schemes assignment) ([]lower.Section, error) {
	out, err := lower.Expand(s.graphFor(rows), rows, s.want.Context, s.want.Cache, s.schemeOf(schemes),
		s.in.tiersOf(rows), s.outlierChannels)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "solve: rows %d: %w", rows, err)
	}
	return out, nil
}

// chooseSchemes decides the scheme of every class in both phases: of the permitted assignments within the limits of
// quality, the one with the least expected time.
func (s *planner) chooseSchemes(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	found, err := s.search(ctx, math.Inf(1), nil, func(prefill, decode assignment) (float64, bool, error) {
		ns, err := s.solvedObjective(ctx, prefill, decode)
		return ns, err == nil, err
	})
	if err != nil {
		return err
	}
	if found.decode == nil {
		return s.tooLossy()
	}
	s.prefill, s.decode, s.chosen = found.prefill, found.decode, found.report
	return nil
}

// prepare lists the assignments of both phases with their bounds. Decode comes first: prefill's programs execute the
// head, which has decode's options if it is shared.
func (s *schemeChoice) prepare(ctx context.Context) error {
	decode := &phase{name: "decode", rows: s.want.DecodeRows(),
		permits: slices.Clone(s.want.Decode), asked: len(s.in.Workload.Schemes.Decode) > 0, max: s.want.MaxKL.Decode}
	add := func(ph *phase, list []op.Scheme) {
		for _, scheme := range list {
			if !slices.Contains(ph.permits, scheme) {
				ph.permits = append(ph.permits, scheme)
			}
		}
	}
	add(decode, s.want.Head)
	for _, rows := range decode.rows {
		decode.weights = append(decode.weights, s.want.DecodeNS(rows, s.want.Weights.Decode))
	}
	p := &phase{name: "prefill", rows: s.want.Buckets, permits: slices.Clone(s.want.Prefill),
		asked: len(s.in.Workload.Schemes.Prefill) > 0, max: s.want.MaxKL.Prefill}
	add(p, s.want.PrefillHead)
	for _, share := range s.want.Share {
		p.weights = append(p.weights, s.want.Weights.Prefill*share)
	}
	s.phases = [2]*phase{p, decode}
	for _, ph := range []*phase{decode, p} {
		if len(ph.rows) == 0 {
			continue
		}
		if err := s.permit(ctx, ph); err != nil {
			return err
		}
	}
	s.listed = true // bounds hold for the candidates there are
	for _, ph := range []*phase{decode, p} {
		if len(ph.rows) == 0 {
			continue
		}
		if err := s.list(ph); err != nil {
			return err
		}
	}
	return nil
}

// cost returns the cost of a candidate in the objective.
func (s *request) cost(candidate *price.Candidate) int64 {
	if s.measure() == problem.Energy {
		return candidate.EnergyNJ
	}
	return candidate.CostNS
}

// processorMask returns the set of processors of shares, one bit for each.
func (s *request) processorMask(shares []planir.Share) (set uint64) {
	for _, sh := range shares {
		set |= 1 << slices.IndexFunc(s.Procs, func(p planir.Proc) bool { return p.Name == sh.Proc })
	}
	return set
}

// sets returns the sets of processors that may work in one program; a single set of all when there are many.
func (s *request) sets() []uint64 {
	if sets, ok := problem.IndependentSets(len(s.Procs), s.Conflicts, 64); ok {
		return sets
	}
	return []uint64{1<<len(s.Procs) - 1}
}

// assignments turns a pair of points into schemes. For a shared head prefill has the scheme of decode.
func (s *schemeChoice) assignments(p, d *point) (prefill, decode assignment) {
	decode = s.schemesOf(s.phases[1], d, nil)
	if p == nil {
		return slices.Clone(decode), decode
	}
	return s.schemesOf(s.phases[0], p, decode), decode
}

// schemesOf returns a point of a phase as schemes. Classes that the phase does not decide have those of others (nil:
// a32/w32).
func (s *schemeChoice) schemesOf(ph *phase, at *point, others assignment) assignment {
	schemes := slices.Clone(others)
	if others == nil {
		schemes = s.uniform(op.A32W32)
	}
	i := 0
	for j, list := range ph.options {
		if len(list) > 0 {
			schemes[j] = list[at.pick[i]]
			i++
		}
	}
	return schemes
}

// headKL returns the loss of a shared head in an assignment of decode, which counts in prefill too.
func (s *schemeChoice) headKL(decode assignment) float64 {
	total := 0.0
	for i := range s.classes {
		if s.classes[i].shared {
			kl, _ := s.loss(&s.classes[i], decode[i])
			total += kl
		}
	}
	return total
}

// quality returns the loss of the chosen schemes by the calibration, for each phase. It has no entry without a
// calibration, or for a phase with a scheme of unknown loss, which a warning mentions.
func (s *schemeChoice) quality() []planir.Quality {
	if s.in.Calibration == nil {
		return nil
	}
	var out []planir.Quality
	limits := s.in.Workload.Quality.MaxKL
	cacheKL, measured := s.in.Calibration.CacheLoss(s.want.Cache)
	for i, schemes := range []assignment{s.prefill, s.decode} {
		ph, limit := s.phases[i], []float64{limits.Prefill, limits.Decode}[i]
		if len(ph.rows) == 0 {
			continue
		}
		quality := planir.Quality{Phase: ph.name, MaxKL: limit, KL: cacheKL}
		switch at := s.in.attention; {
		case at != nil && ph.name == "prefill":
			quality.KL += at.kl
		case at != nil && at.decode:
			quality.KL += at.decodeKL
		}
		var missing []string
		if ph.name == "prefill" {
			lost, known := s.in.dropLoss()
			if quality.KL += lost; !known {
				missing = append(missing, "so many dropped rows of experts")
			}
		}
		if !measured {
			missing = append(missing, fmt.Sprintf("a cache in %s", s.want.Cache))
		}
		for i := range s.classes {
			kl, ok := s.loss(&s.classes[i], schemes[i])
			table := s.tied.table(schemes[i])
			if !ok && table != "" && s.tied.head == i && s.tableLoss(s.tied.node, table) == nil {
				missing = append(missing, fmt.Sprintf("%s in %s", table, s.tied.node))
			} else if !ok {
				missing = append(missing, fmt.Sprintf("%s in %s", schemes[i], s.classes[i].nodes[0]))
			}
			quality.KL += kl
		}
		if missing != nil {
			s.warn("what %s loses is not known: the calibration says nothing about %s",
				ph.name, strings.Join(missing, ", "))
			continue
		}
		out = append([]planir.Quality{quality}, out...)
	}
	return out
}
