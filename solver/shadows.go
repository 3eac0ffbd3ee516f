package solver

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// RATIONALE: How are shadow outliers pruned layer by layer?
//
// Which layers keep shadow outliers (llm.npu sec. 3.3) is decided once a plan has schemes and placements. The losses of
// pruned ones add up, by what calibrate measured in each layer. What a layer takes with some of its products' shadows
// is what the timeline says of a program that is lowered so: shadows beside the product on another processor may take
// no time at all, and two of them less than each by itself, so that times do not add up. The problem is a
// multiple-choice knapsack (problem.Shadows): a group for each layer, an option for each set of its products. The plan
// is then lowered and predicted as decided, and what it loses as a whole is for hetc quality to measure.

// maxShadowProducts bounds the products of a section, all of whose sets are lowered.
const maxShadowProducts = 6

// Units of the problem: losses are in 1e-12 nats; times are weighted, the largest sum taking so many units.
const (
	lossUnit  = 1e-12
	timeUnits = 1 << 44
)

// shadowSection is the layers of one section and its products that have shadow outliers.
type shadowSection struct {
	name     string
	products []string
	layers   []int
	costs    []float64 // by set of products that keep shadows: weighted time of a layer, or energy
}

// pruneShadows prunes shadow outliers of a plan: by the share that the workload names, within the time that it names,
// or, under a limit of quality, wherever that saves time (energy, where that is minimised) and keeps the limit.
func (s *session) pruneShadows(ctx context.Context, plan *planir.Plan) error {
	sections := s.shadowSections(plan)
	if len(sections) == 0 || s.in.Calibration == nil {
		return nil
	}
	if missing := s.unmeasuredShadow(sections); missing != "" {
		s.warn("shadow outliers are kept in all layers: the calibration does not say what those of %s are worth",
			missing)
		return nil
	}
	want := s.in.Workload.Shadows

	if want.Prune > 0 {
		plan.Shadows = s.prunedByRatio(sections, want.Prune)
		return s.lowerPruned(plan)
	}

	slack := s.shadowSlack(plan)
	if want.Slower == 0 && !(slack > 0) {
		return nil // the workload does not permit to lose more
	}

	total, err := s.priceShadows(plan, sections)
	if err != nil {
		return err
	}
	before := *plan
	posed := poseShadows(s, sections, total, slack, want)
	if err := s.pruneOptimally(ctx, plan, posed, want); err != nil {
		return err
	}
	if len(plan.Shadows) == 0 || want.Slower > 0 {
		return nil
	}

	// The problem does not see what changes where layers of different sets meet.
	pays, err := s.pruningPays(plan, &before)
	if err == nil && !pays {
		*plan = before
	}
	return err
}

// pruneOptimally prunes as the solution of the problem says. A search that stopped at a limit prunes nothing.
func (s *session) pruneOptimally(ctx context.Context, plan *planir.Plan, posed *posedShadows,
	want workload.Shadows) error {
	solution, err := s.in.Engine.Shadows(ctx, &posed.Shadows, problem.Limits{})
	if err != nil || solution.Options == nil {
		return err
	}
	if err := posed.Verify(solution); err != nil {
		return err
	}
	plan.Shadows = posed.shadows(solution.Options, s.in.Model.Layers)
	if len(plan.Shadows) == 0 {
		return nil
	}
	plan.Solver = append(slices.Clone(plan.Solver), posed.report(&solution, want))
	return s.lowerPruned(plan)
}

// shadowSections returns the products of a plan with shadow outliers, by section, in any of its programs.
func (s *session) shadowSections(plan *planir.Plan) (out []shadowSection) {
	shadow := map[string]bool{}
	for i := range plan.Decisions {
		if plan.Decisions[i].Scheme.Shadow() {
			shadow[plan.Decisions[i].Node] = true
		}
	}

	for i := range s.graph.Sections {
		section := &s.graph.Sections[i]
		at := slices.IndexFunc(out, func(other shadowSection) bool { return other.name == section.Name })
		if at < 0 {
			at = len(out)
			out = append(out, shadowSection{name: section.Name})
		}

		for _, node := range section.Nodes {
			name := section.Name + "." + node.Name
			if shadow[name] && !slices.Contains(out[at].products, name) {
				out[at].products = append(out[at].products, name)
			}
		}
		for layer := range max(1, section.Layers) {
			out[at].layers = append(out[at].layers, section.First+layer)
		}
	}

	return slices.DeleteFunc(out, func(section shadowSection) bool {
		return len(section.products) == 0 || len(section.products) > maxShadowProducts
	})
}

// unmeasuredShadow returns a product and layer for which the calibration has no worth of its shadow, "" if it has all.
func (s *session) unmeasuredShadow(sections []shadowSection) string {
	for i := range sections {
		for _, product := range sections[i].products {
			for _, layer := range sections[i].layers {
				if s.in.Calibration.Shadow(product, layer) == nil {
					return fmt.Sprintf("%s in layer %d", product, layer)
				}
			}
		}
	}
	return ""
}

// prunedByRatio is llm.npu's rule. It prunes a share of all products: those with the least ratio of the largest outlier
// to the range of the scale.
func (s *session) prunedByRatio(sections []shadowSection, share float64) []planir.Shadow {
	type shadowAt struct {
		product string
		layer   int
	}

	var all []shadowAt
	var ratios []float64
	for i := range sections {
		for _, layer := range sections[i].layers {
			for _, product := range sections[i].products {
				all = append(all, shadowAt{product, layer})
				ratios = append(ratios, s.in.Calibration.Shadow(product, layer).Ratio)
			}
		}
	}

	pruned := map[shadowAt]bool{}
	for _, i := range problem.PaperPrune(ratios, share) {
		pruned[all[i]] = true
	}
	return keptShadows(sections, s.in.Model.Layers, func(_ *shadowSection, _, layer int, name string) bool {
		return !pruned[shadowAt{name, layer}]
	})
}

// keptShadows returns the entries of a plan for what is kept: of the products that are pruned somewhere. kept gets the
// section, the index of the product in it, the layer, and the product's name.
func keptShadows(sections []shadowSection, layers int,
	kept func(section *shadowSection, product, layer int, name string) bool) (out []planir.Shadow) {
	for i := range sections {
		section := &sections[i]
		for product, name := range section.products {
			in := func(layer int) bool {
				return slices.Contains(section.layers, layer) && kept(section, product, layer, name)
			}
			if slices.ContainsFunc(section.layers, func(layer int) bool { return !in(layer) }) {
				out = append(out, planir.ShadowIn(name, layers, in))
			}
		}
	}
	slices.SortFunc(out, func(a, b planir.Shadow) int { return strings.Compare(a.Node, b.Node) })
	return out
}

// shadowSlack returns how much more the phases with shadow outliers may lose beyond their schemes' loss, in nats: the
// least over these phases. It is 0 if one has no limit, because the workload then does not permit further loss.
func (s *session) shadowSlack(plan *planir.Plan) float64 {
	slack := math.Inf(1)
	for _, quality := range s.quality() {
		if !s.shadowsIn(plan, quality.Phase) {
			continue
		}
		if quality.MaxKL == 0 {
			return 0
		}
		slack = min(slack, quality.MaxKL-quality.KL)
	}
	if math.IsInf(slack, 1) {
		return 0
	}
	return slack
}

// shadowsIn reports whether a phase has products with shadow outliers.
func (s *session) shadowsIn(plan *planir.Plan, phase string) bool {
	return slices.ContainsFunc(plan.Decisions, func(decision planir.Decision) bool {
		return decision.Scheme.Shadow() && s.decodes(decision.Rows) == (phase == "decode")
	})
}

// priceShadows fills in the costs of a layer of each section with each set of its products' shadows: time, weighted
// over all programs, or energy. It returns the cost of all programs without any.
func (s *session) priceShadows(plan *planir.Plan, sections []shadowSection) (total float64, err error) {
	none := keptShadows(sections, s.in.Model.Layers, func(*shadowSection, int, int, string) bool { return false })
	if total, err = s.weightedCost(plan, none, ""); err != nil {
		return 0, err
	}
	for i := range sections {
		section := &sections[i]
		for kept := range 1 << len(section.products) {
			trial := keptShadows(sections, s.in.Model.Layers, func(of *shadowSection, product, _ int, _ string) bool {
				return of == section && kept>>product&1 == 1
			})
			cost, err := s.weightedCost(plan, trial, section.name)
			if err != nil {
				return 0, err
			}
			section.costs = append(section.costs, cost/float64(len(section.layers)))
		}
	}
	return total, nil
}

// savesEnergy reports whether shadows are pruned for least energy. The workload's share of time is one of time,
// whatever is minimised.
func (s *session) savesEnergy() bool {
	return s.measure() == problem.Energy && s.in.Workload.Shadows.Slower == 0
}

// weightedCost returns the time of a plan's programs with some shadows, each multiplied by its weight in the objective:
// of one section of them, or of all (""). Where energy is saved it is that of all sections.
func (s *session) weightedCost(plan *planir.Plan, shadows []planir.Shadow, section string) (total float64, err error) {
	trial := *plan
	trial.Shadows, trial.Beside = shadows, nil
	if err := s.lower(&trial); err != nil {
		return 0, err
	}

	for i := range trial.Program.Programs {
		program := &trial.Program.Programs[i]
		weight := s.weightOfRows(program.Rows)
		if weight == 0 {
			continue
		}

		if s.savesEnergy() {
			nj, _, err := s.energy(&trial, program)
			if err != nil {
				return 0, err
			}
			total += float64(weight * float64(nj))
			continue
		}

		of, err := s.workOf(&trial, program)
		if err != nil {
			return 0, err
		}
		_, sections, err := s.predictSections(program, of, func(e price.Estimate) int64 { return e.NS })
		if err != nil {
			return 0, err
		}

		for at, ns := range sections {
			if section == "" || program.Sections[at].Name == section {
				total += float64(weight * float64(ns))
			}
		}
	}
	return total, nil
}

// weightOfRows returns the weight of a program of so many rows in the objective.
func (s *session) weightOfRows(rows int) float64 {
	for _, phase := range s.phases {
		if at := slices.Index(phase.rows, rows); at >= 0 {
			return phase.weights[at]
		}
	}
	return 0
}

// posedShadows is the problem, with the meaning of its groups and units.
type posedShadows struct {
	problem.Shadows
	sections []shadowSection
	of       [][2]int // by group: section, and index of the layer in it
	unitNS   float64  // of a unit of time; nJ where costs are energy
	energy   bool     // costs are energy
}

// poseShadows poses the problem: least time within a loss, or least loss within a time. Keeping all shadows is the
// first option of a layer, so it wins among equally good ones.
func poseShadows(ses *session, sections []shadowSection, total, slack float64, want workload.Shadows) *posedShadows {
	posed := &posedShadows{sections: sections, unitNS: max(1, total) / timeUnits, energy: ses.savesEnergy()}
	posed.Name = "layers"
	posed.Max = int64(math.Floor(slack / lossUnit))
	if want.Slower > 0 {
		posed.Max = int64(math.Floor(want.Slower * timeUnits))
	}

	for i := range sections {
		section := &sections[i]
		last := 1<<len(section.products) - 1
		for at, layer := range section.layers {
			group := problem.ShadowGroup{Name: fmt.Sprintf("%s %d", section.name, layer)}
			for option := range last + 1 {
				kept := last - option
				loss := 0.0
				for product, name := range section.products {
					if kept>>product&1 == 0 {
						loss += ses.in.Calibration.Shadow(name, layer).KL
					}
				}

				cost := int64(math.Round((section.costs[kept] - section.costs[0]) / posed.unitNS))
				lost := int64(math.Round(loss / lossUnit))
				if want.Slower > 0 {
					group.Options = append(group.Options, problem.ShadowOption{Cost: lost, Use: cost})
				} else {
					group.Options = append(group.Options, problem.ShadowOption{Cost: cost, Use: lost})
				}
			}

			posed.Groups, posed.of = append(posed.Groups, group), append(posed.of, [2]int{i, at})
		}
	}
	return posed
}

// report returns the plan's report of the problem. If time is bounded, its objective is a loss; where energy is
// minimised, it is in nJ.
func (p *posedShadows) report(solution *problem.ShadowSolution, want workload.Shadows) planir.Solve {
	report := planir.Solve{Problem: "shadows", Status: string(solution.Status), Choices: p.choices(),
		ObjectiveNS: p.ns(solution.Objective), BoundNS: p.ns(solution.Bound)}
	switch {
	case want.Slower > 0:
		report.Problem = "shadows (loss, 1e-12 nats)"
		report.ObjectiveNS, report.BoundNS = solution.Objective, solution.Bound
	case p.energy:
		report.Problem = "energy shadows"
	}
	return report
}

// shadows returns the plan's entries for the chosen options.
func (p *posedShadows) shadows(options []int, layers int) []planir.Shadow {
	return keptShadows(p.sections, layers, func(section *shadowSection, product, layer int, _ string) bool {
		for group, of := range p.of {
			if &p.sections[of[0]] == section && section.layers[of[1]] == layer {
				kept := len(p.Groups[group].Options) - 1 - options[group]
				return kept>>product&1 == 1
			}
		}
		return true
	})
}

// choices returns the number of options.
func (p *posedShadows) choices() (count int) {
	for i := range p.Groups {
		count += len(p.Groups[i].Options)
	}
	return count
}

// ns returns a sum of times of the problem.
func (p *posedShadows) ns(units int64) int64 { return int64(math.Round(float64(units) * p.unitNS)) }

// lowerPruned lowers and predicts a plan whose shadows have changed.
func (s *session) lowerPruned(plan *planir.Plan) error {
	if err := s.lower(plan); err != nil {
		return err
	}
	if err := s.predict(plan); err != nil {
		return err
	}
	bound := plan.Memory.Max
	memory := planir.MemoryOf(plan)
	memory.Max = bound
	plan.Memory = &memory
	return nil
}

// prunedQuality adds the loss of pruned shadow outliers to the quality of each phase, and warns if that exceeds the
// limit, as it may with a share that the workload names.
func (s *session) prunedQuality(plan *planir.Plan) {
	for i := range plan.Quality {
		quality := &plan.Quality[i]
		for _, shadow := range plan.Shadows {
			hasShadow := slices.ContainsFunc(plan.Decisions, func(decision planir.Decision) bool {
				isPhase := s.decodes(decision.Rows) == (quality.Phase == "decode")
				return isPhase && decision.Node == shadow.Node && decision.Scheme.Shadow()
			})
			if !hasShadow {
				continue
			}
			for _, kl := range s.prunedLosses(&shadow) {
				quality.KL += kl
			}
		}

		quality.KL = max(0, quality.KL)
		if quality.MaxKL > 0 && quality.KL > quality.MaxKL {
			s.warn("%s is predicted to lose %.3g nats a token with the shadow outliers that the workload has pruned, "+
				"more than %s: without \"shadows\" solve keeps the limit", quality.Phase, quality.KL,
				workload.KLText(quality.MaxKL))
		}
	}
}

// prunedLosses lists what a product loses in each layer in which its shadow is pruned, in nats.
func (s *request) prunedLosses(shadow *planir.Shadow) (losses []float64) {
	for i := range s.in.Calibration.Shadows {
		worth := &s.in.Calibration.Shadows[i]
		if worth.Class == shadow.Node && !shadow.In(worth.Layer) {
			losses = append(losses, worth.KL)
		}
	}
	return losses
}

// keptShare returns the share of its layers in which a node is executed: less than 1 where it computes shadow outliers
// that are pruned in some.
func (s *request) keptShare(plan *planir.Plan, node string) float64 {
	product, ok := lower.ShadowOf(node)
	if !ok || len(plan.Shadows) == 0 {
		return 1
	}
	kept, layers := 0, 0
	for i := range s.graph.Sections {
		section := &s.graph.Sections[i]
		isProduct := func(node models.Node) bool { return section.Name+"."+node.Name == product }
		if !slices.ContainsFunc(section.Nodes, isProduct) {
			continue
		}
		for layer := range max(1, section.Layers) {
			layers++
			if !plan.Pruned(product, section.First+layer) {
				kept++
			}
		}
	}
	return float64(kept) / float64(max(1, layers))
}
