package solver

import (
	"context"
	"math"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/solver/problem"
)

// leastBytes returns a lower bound of what all programs hold with the schemes that are set, in bytes, beside
// fixedBytes. It adds two things: one packed copy of each weight for each format that they read it in, and the least of
// a joint problem of everything else, without costs and other limits.
//
// Candidates of one kind are one choice in that problem. It needs what all of them need: of a buffer the fewest rows,
// of scratch the least. A step counts where it is joined to no other whatever is chosen, and a buffer where no graph
// can keep its value inside.
func (s *planner) leastBytes(ctx context.Context) (int64, error) {
	assets := s.newAssets()
	assets.memory, assets.pool, assets.least, assets.regions[""] = true, true, true, 0
	packs := distinctPacks{of: assets, all: map[[2]string]*onePack{}}
	var programs []*program
	needed := int64(0) // bytes, for this problem only

	// All needs are scanned before any asset is made, because they decide where packs and buffers are divided.
	for _, rows := range s.want.Rows() {
		pr, err := s.program(rows, s.assigned(rows))
		if err != nil {
			return 0, err
		}
		programs = append(programs, pr)

		for _, in := range pr.instances {
			fresh := in.needs == nil
			all, err := in.candidateNeeds()
			if err != nil {
				return 0, err
			}
			if fresh {
				defer func() { in.needs = nil }()
				needed += needsBytes(all)
			}
			assets.scanAll(all)
			packs.scanAll(all)
		}
	}

	posed, err := s.leastMemoryProblem(programs, assets)
	if err != nil {
		return 0, err
	}

	posed.keepNeeded(assets.list)
	if needed += posed.bytes(); s.budget.exceededBy(needed) {
		// The problem takes more than solving may keep: a weaker bound needs none.
		return s.weightBytes(s.prefill, s.decode) + s.leastPool(), nil
	}
	s.budget.reserve(needed)
	defer s.budget.release(needed)

	sol, err := s.in.Engine.Joint(ctx, posed.Joint, problem.Limits{Nodes: s.nodes, Bytes: s.budget.remaining(0)})
	if err != nil {
		return 0, err
	}
	if err := posed.Verify(sol); err != nil {
		return 0, err
	}

	weights, err := packs.bytes()
	return sol.Bound + weights, err
}

// leastMemoryProblem returns the joint problem of leastBytes: one choice for each kind of candidates, and no costs.
func (s *planner) leastMemoryProblem(programs []*program, assets *assets) (*joint, error) {
	least := &joint{Joint: &problem.Joint{Name: "least memory",
		Minimise: problem.Memory, Regions: []problem.Region{{Name: "memory"}}}}
	for _, pr := range programs {
		posed := pr.partition(&s.request, problem.Time)
		for i, in := range pr.instances {
			chain := problem.Chain{Name: posed.Chains[i].Name, Repeat: 1}
			ends := joiningProcs(in.needs)
			for node := range in.candidates {
				item, err := in.commonNeeds(assets, node, ends[node], pr.name)
				if err != nil {
					return nil, err
				}
				chain.Items = append(chain.Items, item)
			}
			posed.Chains[i] = chain
		}
		least.Parts = append(least.Parts, problem.Part{Partition: posed, Weight: 1})
	}
	return least, nil
}

// distinctPacks are the weights that programs read, by name and format. However they are divided, each is packed once
// in full.
type distinctPacks struct {
	of  *assets
	all map[[2]string]*onePack
}

// onePack is the region that all uses of a weight cover, and the layouts of these uses.
type onePack struct {
	k, n    int
	experts int
	layouts []string
}

// scanAll notes the weights that an instance needs, but for tables.
func (p *distinctPacks) scanAll(needs [][][]need) {
	for _, candidates := range needs {
		for _, steps := range candidates {
			for i := range steps {
				if !steps[i].table {
					p.scan(steps[i].weights)
				}
			}
		}
	}
}

// scan widens the region of each weight and format to the uses, and notes their layouts.
func (p *distinctPacks) scan(uses []lower.Use) {
	for i := range uses {
		use := &uses[i]
		key := [2]string{use.Weight, use.Scheme}
		pack := p.all[key]
		if pack == nil {
			pack = &onePack{}
			p.all[key] = pack
		}
		pack.experts = max(pack.experts, p.of.expertsOf(use))
		pack.k, pack.n = max(pack.k, use.K1), max(pack.n, use.N1)
		if !slices.Contains(pack.layouts, use.Layout) {
			pack.layouts = append(pack.layouts, use.Layout)
		}
	}
}

// bytes returns the bytes of the packs, each in its smallest layout.
func (p *distinctPacks) bytes() (total int64, err error) {
	for key, once := range p.all {
		least := int64(math.MaxInt64)
		for _, layout := range once.layouts {
			spec := planir.Pack{Weight: key[0], Experts: once.experts, K1: once.k, N1: once.n, Scheme: key[1],
				Layout: layout}
			bytes, err := pack.Bytes(spec.Spec())
			if err != nil {
				return 0, err
			}
			least = min(least, op.RoundUp(bytes, planir.PageBytes))
		}
		total += least * int64(max(1, p.of.layers[key[0]]))
	}
	return total, nil
}

// commonNeeds returns the item of a node with one choice for each kind of its candidates. A choice needs the
// intersection of the assets that its candidates need, so that the problem takes no more than any plan.
func (in *instance) commonNeeds(shared *assets, node int, ends map[string]bool, program string) (problem.Item, error) {
	name := in.section.Nodes[node].Name
	item := problem.Item{Name: name, Before: []string{""}, After: []string{""}}
	if node > 0 {
		item.EdgeNS = [][]int64{{0}}
	}
	byKind := map[string]int{}
	for i := range in.candidates[node] {
		candidate, needs := &in.candidates[node][i], in.needs[node][i]
		var list []int
		var err error
		for step := range needs {
			if list, err = shared.ofStep(&needs[step], list); err != nil {
				return item, err
			}
		}
		list = shared.ofCandidate(needs, ends, name+"@"+program, in.section.Repeat, list)
		slices.Sort(list)
		list = slices.Compact(list)

		key := candidate.Kind()
		at, known := byKind[key]
		if !known {
			byKind[key] = len(item.Choices)
			item.Choices = append(item.Choices,
				problem.Choice{Label: key, Procs: in.chain.Items[node].Choices[i].Procs, Assets: list})
			continue
		}
		item.Choices[at].Assets = slices.DeleteFunc(item.Choices[at].Assets, func(asset int) bool {
			_, both := slices.BinarySearch(list, asset)
			return !both
		})
	}
	return item, nil
}

// keepNeeded keeps only the assets that a choice needs, and renumbers them in the choices.
func (j *joint) keepNeeded(all []problem.Asset) {
	numbers := map[int]int{}
	for i := range j.Parts {
		for _, chain := range j.Parts[i].Partition.Chains {
			for node := range chain.Items {
				for i := range chain.Items[node].Choices {
					list := chain.Items[node].Choices[i].Assets
					for position, asset := range list {
						at, known := numbers[asset]
						if !known {
							at = len(j.Assets)
							numbers[asset] = at
							j.Assets = append(j.Assets, all[asset])
						}
						list[position] = at
					}
					slices.Sort(list)
				}
			}
		}
	}
}
