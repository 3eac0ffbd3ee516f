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
	name    string        // "prefill" or "decode"
	rows    []int         // of its programs
	weights []float64     // of each program in the objective
	permits []op.Scheme   // that the workload permits
	asked   bool          // the workload lists the schemes
	max     float64       // KL that may be lost, 0: no limit
	options [][]op.Scheme // by class; empty where the phase does not decide it

	points     []point            // assignments within the limit, least bound first
	objectives map[string]float64 // of the assignments that were solved, by assignment.key
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
	s.phases = [2]*phase{s.prefillPhase(), s.decodePhase()}
	var order []*phase
	for _, ph := range []*phase{s.phases[1], s.phases[0]} {
		if len(ph.rows) > 0 {
			order = append(order, ph)
		}
	}
	for _, ph := range order {
		if err := s.permit(ctx, ph); err != nil {
			return err
		}
	}
	s.listed = true // bounds hold for the candidates there are
	for _, ph := range order {
		if err := s.list(ph); err != nil {
			return err
		}
	}
	return nil
}

// prefillPhase returns the phase of the programs that compute prompts.
func (s *request) prefillPhase() *phase {
	ph := &phase{name: "prefill", rows: s.want.Buckets, asked: len(s.in.Workload.Schemes.Prefill) > 0,
		permits: withoutRepeats(s.want.Prefill, s.want.PrefillHead), max: s.want.MaxKL.Prefill}
	for _, share := range s.want.Share {
		ph.weights = append(ph.weights, s.want.Weights.Prefill*share)
	}
	return ph
}

// decodePhase returns the phase of the programs that decode.
func (s *request) decodePhase() *phase {
	ph := &phase{name: "decode", rows: s.want.DecodeRows(), asked: len(s.in.Workload.Schemes.Decode) > 0,
		permits: withoutRepeats(s.want.Decode, s.want.Head), max: s.want.MaxKL.Decode}
	for _, rows := range ph.rows {
		ph.weights = append(ph.weights, s.want.DecodeNS(rows, s.want.Weights.Decode))
	}
	return ph
}

// withoutRepeats returns a list of schemes, and behind it those of another list that it lacks.
func withoutRepeats(list, more []op.Scheme) []op.Scheme {
	out := slices.Clone(list)
	for _, scheme := range more {
		if !slices.Contains(out, scheme) {
			out = append(out, scheme)
		}
	}
	return out
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

// assignments turns a pair of points into schemes; prefill nil: decode's count for both. For a shared head prefill has
// the scheme of decode.
func (s *schemeChoice) assignments(ofPrefill, ofDecode *point) (prefill, decode assignment) {
	decode = s.schemesOf(s.phases[1], ofDecode, nil)
	if ofPrefill == nil {
		return slices.Clone(decode), decode
	}
	return s.schemesOf(s.phases[0], ofPrefill, decode), decode
}

// schemesOf returns a point of a phase as schemes. Classes that the phase does not decide have those of others (nil:
// a32/w32).
func (s *schemeChoice) schemesOf(ph *phase, at *point, others assignment) assignment {
	schemes := slices.Clone(others)
	if others == nil {
		schemes = s.uniform(op.A32W32)
	}
	next := 0 // of the point's picks, which are of the classes with options
	for class, list := range ph.options {
		if len(list) > 0 {
			schemes[class] = list[at.pick[next]]
			next++
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

// quality returns the loss of the chosen schemes by the calibration, for each phase: decode first. It has no entry
// without a calibration, or for a phase with a scheme of unknown loss, which a warning mentions.
func (s *schemeChoice) quality() []planir.Quality {
	if s.in.Calibration == nil {
		return nil
	}
	limits := s.in.Workload.Quality.MaxKL
	var out []planir.Quality
	for i, limit := range []float64{limits.Prefill, limits.Decode} {
		ph := s.phases[i]
		if len(ph.rows) == 0 {
			continue
		}
		kl, unknown := s.lossOfPhase(ph)
		if unknown != nil {
			s.warn("what %s loses is not known: the calibration says nothing about %s",
				ph.name, strings.Join(unknown, ", "))
			continue
		}
		out = append([]planir.Quality{{Phase: ph.name, MaxKL: limit, KL: kl}}, out...)
	}
	return out
}

// lossOfPhase adds up what the cache, sparse attention, dropped rows and the chosen schemes of a phase lose. It lists
// what the calibration says nothing about.
func (s *schemeChoice) lossOfPhase(ph *phase) (kl float64, unknown []string) {
	schemes, isPrefill := s.decode, ph.name == "prefill"
	if isPrefill {
		schemes = s.prefill
	}
	kl, measured := s.in.Calibration.CacheLoss(s.want.Cache)

	if at := s.in.attention; at != nil && isPrefill {
		kl += at.kl
	} else if at != nil && at.decode {
		kl += at.decodeKL
	}

	if isPrefill {
		lost, known := s.in.dropLoss()
		kl += lost
		if !known {
			unknown = append(unknown, "so many dropped rows of experts")
		}
	}
	if !measured {
		unknown = append(unknown, fmt.Sprintf("a cache in %s", s.want.Cache))
	}

	for i := range s.classes {
		lost, known := s.loss(&s.classes[i], schemes[i])
		kl += lost
		if !known {
			unknown = append(unknown, s.unmeasuredText(i, schemes[i]))
		}
	}
	return kl, unknown
}

// unmeasuredText names the product of a class whose loss in a scheme is not known: the embedding that is looked up in
// the class, or its first node.
func (s *schemeChoice) unmeasuredText(class int, scheme op.Scheme) string {
	table := s.tied.table(scheme)
	if table != "" && s.tied.head == class && s.tableLoss(s.tied.node, table) == nil {
		return fmt.Sprintf("%s in %s", table, s.tied.node)
	}
	return fmt.Sprintf("%s in %s", scheme, s.classes[class].nodes[0])
}
