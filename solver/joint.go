package solver

import (
	"math"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// joint is the problem of all programs together, with what its parts stand for.
type joint struct {
	*problem.Joint
	programs []*program
	unit     float64            // weight of one expected call: divides the problem's energies and objectives
	posed    map[quantity]int64 // the limits that it was posed with, in the units of bounds
}

// weightScale is the weight of the part that counts most.
const weightScale = 1 << 14

// jointProblem names the problem in reports.
func jointProblem(m problem.Measure) string { return "joint " + string(m) }

// poseJoint poses the problem of all programs. less is taken off each bound beforehand for what the problem leaves out.
//
// Programs are coupled by what they hold: a choice needs assets (a graph, columns of a packed weight, rows of a
// buffer), an asset counts once however many choices need it, and regions bound the sum. The cost of a choice is what
// the program by itself has, weighted by how often the program is called.
func (s *session) poseJoint(less map[quantity]int64) (*joint, error) {
	j := &joint{Joint: &problem.Joint{Name: "plan", Minimise: s.goal}, posed: map[quantity]int64{}, unit: weightScale}
	// Weights of parts are whole numbers; the heaviest part gets weightScale.
	heaviest := 0.0
	for i := range s.want.Rows() {
		heaviest = max(heaviest, s.callWeight(i))
	}
	if heaviest > 0 {
		j.unit /= heaviest
	}
	// All needs are scanned before any asset is made, because they decide where packs and buffers are divided.
	assets := s.newAssets()
	slowest := s.limitJoint(j, assets, less)
	for _, rows := range s.want.Rows() {
		program, err := s.program(rows, s.assigned(rows))
		if err != nil {
			return nil, err
		}
		j.programs = append(j.programs, program)
		for _, in := range program.instances {
			fresh := in.needs == nil
			all, err := in.candidateNeeds()
			if err != nil {
				return nil, err
			}
			if fresh {
				s.reserveCached(needsBytes(all))
			}
			assets.scanAll(all)
		}
	}
	for i, program := range j.programs {
		partition := program.partition(&s.request, problem.Time)
		for k, in := range program.instances {
			if err := in.attachAssets(&partition.Chains[k], assets, program.name); err != nil {
				return nil, err
			}
		}
		weight := max(1, int64(math.Round(s.callWeight(i)*j.unit)))
		j.Parts = append(j.Parts, problem.Part{Partition: partition, Weight: weight, MaxNS: slowest[program.name]})
	}
	j.Assets = assets.list
	return j, s.budget.checkWith(j.bytes(), "the problem of all programs together")
}

// limitJoint sets a joint problem's limits and regions from the bounds, and tells assets what has to be counted. The
// result are the most ns that programs may take, by name. A limit that falls below 1 is posed as 1: 0 would mean
// none.
func (s *session) limitJoint(j *joint, assets *assets, less map[quantity]int64) map[string]int64 {
	region := func(name string) *problem.Region {
		i, ok := assets.regions[name]
		if !ok {
			i = len(j.Regions)
			assets.regions[name] = i
			j.Regions = append(j.Regions, problem.Region{Name: name})
		}
		return &j.Regions[i]
	}
	slowest := map[string]int64{}
	for _, bound := range s.bounds {
		most := max(1, bound.max-less[bound.quantity])
		j.posed[bound.quantity] = most
		switch bound.kind {
		case problem.LimitRegionBytes:
			region(bound.name).MaxBytes = most
		case problem.LimitRegionGraphs:
			region(bound.name).MaxGraphs = int(most)
		case problem.LimitBytes:
			j.MaxBytes, assets.memory = most, true
		case problem.LimitOpenNS:
			j.MaxOpenNS = most
			for i := range s.Procs {
				if openNS(s.in.SoC.Processor(s.Procs[i].Name)) > 0 {
					region(s.Procs[i].Name)
				}
			}
		case problem.LimitEnergyNJ:
			j.MaxEnergyNJ = price.Whole(math.Max(1, float64(most)*j.unit))
		case problem.LimitPartNS:
			slowest[bound.name] = most
		}
	}
	if j.Minimise == problem.Memory || assets.memory && s.tight {
		assets.memory, assets.pool = true, true
	}
	if assets.memory {
		region("").Name = "memory"
	}
	return slowest
}

// choices are those that a plan makes, as the problem numbers them.
func (j *joint) choices(plan *planir.Plan) [][][]int {
	var out [][][]int
	for _, pr := range j.programs {
		var part [][]int
		for _, in := range pr.instances {
			list := make([]int, len(in.candidates))
			for i := range list {
				decision := DecisionAt(plan, in.section.Nodes[i].Name, in.section.Rows)
				if list[i] = in.candidateLike(i, decision); list[i] < 0 {
					panic("BUG: decision on " + decision.Node + " is none of its candidates")
				}
			}
			part = append(part, list)
		}
		out = append(out, part)
	}
	return out
}

// modelledAmounts is what choices take of everything bounded, as the problem counts it, in the units of bounds. See
// unseen for what a lowered plan takes beyond that.
func (j *joint) modelledAmounts(fresh *session, choices [][][]int) map[quantity]int64 {
	use := j.Use(choices)
	out := map[quantity]int64{}
	for _, bound := range fresh.bounds {
		switch bound.kind {
		case problem.LimitRegionBytes, problem.LimitRegionGraphs:
			region := slices.IndexFunc(j.Regions, func(region problem.Region) bool { return region.Name == bound.name })
			out[bound.quantity] = use.RegionBytes[region]
			if bound.kind == problem.LimitRegionGraphs {
				out[bound.quantity] = use.RegionGraphs[region]
			}
		case problem.LimitBytes:
			out[bound.quantity] = use.Bytes
		case problem.LimitOpenNS:
			out[bound.quantity] = use.OpenNS
		case problem.LimitEnergyNJ:
			out[bound.quantity] = price.Whole(float64(use.EnergyNJ) / j.unit)
		case problem.LimitPartNS:
			i := slices.IndexFunc(j.programs, func(pr *program) bool { return pr.name == bound.name })
			out[bound.quantity] = use.PartNS[i]
		}
	}
	return out
}
