package solver

import (
	"math"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// joint is the problem of all programs together, with the programs that its parts stand for.
type joint struct {
	*problem.Joint
	programs []*program
	assets   *assets
	unit     float64            // weight of one expected call: divides the problem's energies and objectives
	posed    map[quantity]int64 // the limits that it was posed with, in the units of bounds
}

// Weights of parts are whole numbers. The heaviest part gets a weight of at least weightScale: as much more as it takes
// until no weight is rounded by more than weightError, relative, unless what the parts can take at most leaves
// mostTaken, in which the search calculates exactly. What is rounded off then is less than the search tells apart.
const (
	weightScale = 1 << 14
	weightError = 0.01
	mostTaken   = 1 << 50
)

// jointProblem returns the problem's name in reports.
func jointProblem(m problem.Measure) string { return "joint " + string(m) }

// poseJoint poses the problem of all programs, with the bounds as its limits.
//
// Programs are coupled by what they hold. A choice needs assets: a graph, columns of a packed weight, rows of a buffer.
// An asset counts once however many choices need it, and regions bound the sum. A choice costs as much as in the
// program by itself, weighted by how often the program is called.
func (s *session) poseJoint() (*joint, error) {
	assets := s.newAssets()
	posed := &joint{Joint: &problem.Joint{Name: "plan", Minimise: s.goal}, assets: assets}
	slowest := s.limitJoint(posed, nil)

	// All needs are scanned before any asset is made, because they decide where packs and buffers are divided.
	for _, rows := range s.want.Rows() {
		program, err := s.program(rows, s.assigned(rows))
		if err != nil {
			return nil, err
		}
		posed.programs = append(posed.programs, program)
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

	for _, program := range posed.programs {
		partition := program.partition(&s.request, problem.Time)
		for i, in := range program.instances {
			if err := in.attachAssets(&partition.Chains[i], assets, program.name); err != nil {
				return nil, err
			}
		}
		posed.Parts = append(posed.Parts, problem.Part{Partition: partition})
	}
	posed.weigh(s.callWeight)
	s.limitParts(posed, slowest)
	posed.Assets = assets.list
	return posed, s.budget.checkWith(posed.bytes(), "the problem of all programs together")
}

// withLimits returns the same problem with other limits: less is subtracted from each bound, for what the problem does
// not model.
func (s *session) withLimits(j *joint, less map[quantity]int64) *joint {
	posed := *j.Joint
	posed.Regions, posed.Parts = slices.Clone(posed.Regions), slices.Clone(posed.Parts)
	out := *j
	out.Joint = &posed
	slowest := s.limitJoint(&out, less)
	s.limitParts(&out, slowest)
	return &out
}

// limitParts sets the limits that count calls of programs: the most ns of each part, and the energy of all of them.
func (s *session) limitParts(j *joint, slowest map[string]int64) {
	for i := range j.Parts {
		j.Parts[i].MaxNS = slowest[j.programs[i].name]
	}
	for _, bound := range s.bounds {
		if bound.kind == problem.LimitEnergyNJ {
			j.MaxEnergyNJ = price.Whole(math.Max(1, float64(j.posed[bound.quantity])*j.unit))
		}
	}
}

// weigh gives each part its weight for so many expected calls. A part that is never called counts as if it were called
// 1/weightScale as often as the one that is called most, so that its time still decides between equal solutions.
func (j *joint) weigh(calls func(part int) float64) {
	heaviest := 0.0
	for i := range j.Parts {
		heaviest = max(heaviest, calls(i))
	}

	if heaviest <= 0 {
		heaviest = 1
	}

	scaled := func(part int, scale float64) float64 {
		if calls(part) <= 0 {
			return scale / weightScale
		}
		return calls(part) / heaviest * scale
	}

	rounded := func(scale float64) bool {
		for i := range j.Parts {
			exact := scaled(i, scale)
			if math.Abs(math.Max(1, math.Round(exact))-exact) > weightError*exact {
				return true
			}
		}
		return false
	}

	fits := func(scale float64) bool {
		taken := 0.0
		for i := range j.Parts {
			taken += float64((scaled(i, scale) + 1) * mostOf(j.Parts[i].Partition))
		}
		return taken < mostTaken
	}

	scale := float64(weightScale)
	for rounded(scale) && fits(2*scale) {
		scale *= 2
	}
	for i := range j.Parts {
		j.Parts[i].Weight = max(1, int64(math.Round(scaled(i, scale))))
	}
	j.unit = scale / heaviest
}

// mostOf returns the most time or energy that a program can take, in ns or nJ, whichever number is larger.
func mostOf(partition *problem.Partition) float64 {
	var time, energy float64
	for i := range partition.Chains {
		chain := &partition.Chains[i]
		for node := range chain.Items {
			item := &chain.Items[node]
			var ns, nj, edge int64
			for _, choice := range item.Choices {
				ns, nj = max(ns, choice.CostNS), max(nj, choice.EnergyNJ)
			}
			for _, row := range item.EdgeNS {
				edge = max(edge, slices.Max(row))
			}
			time += float64(chain.Repeat) * float64(ns+edge)
			energy += float64(float64(chain.Repeat) * float64(nj))
		}
	}
	return max(time, energy)
}

// limitJoint sets a joint problem's limits and regions from the bounds, and tells assets what has to be counted. It
// returns the most ns that programs may take, by name. A limit that falls below 1 is posed as 1, since 0 would mean no
// limit.
func (s *session) limitJoint(posed *joint, less map[quantity]int64) map[string]int64 {
	assets := posed.assets
	posed.posed = map[quantity]int64{}
	region := func(name string) *problem.Region {
		i, ok := assets.regions[name]
		if !ok {
			i = len(posed.Regions)
			assets.regions[name] = i
			posed.Regions = append(posed.Regions, problem.Region{Name: name})
		}
		return &posed.Regions[i]
	}

	slowest := map[string]int64{}
	for _, bound := range s.bounds {
		most := max(1, bound.max-less[bound.quantity])
		posed.posed[bound.quantity] = most
		switch bound.kind {
		case problem.LimitRegionBytes:
			region(bound.name).MaxBytes = most
		case problem.LimitRegionGraphs:
			region(bound.name).MaxGraphs = int(most)
		case problem.LimitBytes:
			posed.MaxBytes, assets.memory = most, true
		case problem.LimitOpenNS:
			posed.MaxOpenNS = most
			for i := range s.Procs {
				if openNS(s.in.SoC.Processor(s.Procs[i].Name)) > 0 {
					region(s.Procs[i].Name)
				}
			}
		case problem.LimitEnergyNJ:
			// of all programs by their weights, which are not known yet
		case problem.LimitPartNS:
			slowest[bound.name] = most
		}
	}

	// A plan of least memory, and a bound that a plan must not exceed, count buffers as well.
	if assets.memory && s.tight {
		assets.pool = true
	}
	if posed.Minimise == problem.Memory {
		assets.memory, assets.pool = true, true
	}
	if assets.memory {
		region("").Name = "memory"
	}
	return slowest
}

// choices returns the choices that a plan makes, in the numbering of the problem.
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

// modelledAmounts returns how much choices take of everything bounded, as the problem counts it, in the units of
// bounds. See unmodelled for what a lowered plan takes beyond that.
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
			part := slices.IndexFunc(j.programs, func(pr *program) bool { return pr.name == bound.name })
			out[bound.quantity] = use.PartNS[part]
		}
	}
	return out
}
