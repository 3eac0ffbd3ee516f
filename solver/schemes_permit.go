package solver

import (
	"context"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/price"
)

// permit fills in a phase's options: for every class the schemes that are permitted, supported, measured and priced. A
// warning mentions each scheme that is left out, with the classes for which it is.
func (s *schemeChoice) permit(ctx context.Context, ph *phase) error {
	ph.options = make([][]op.Scheme, len(s.classes))
	var first error
	for i, scheme := range ph.permits {
		executes := func(p planir.Proc) bool { return slices.Contains(p.Schemes, scheme) }
		if !ph.asked && ph.max > 0 && !slices.ContainsFunc(s.Procs, executes) {
			continue // only the limit of quality permits it, and no processor executes it
		}

		var out leftOut
		for k := range s.classes {
			s.reportProgress(Progress{Phase: "price " + ph.name, Done: i*len(s.classes) + k,
				All:  len(ph.permits) * len(s.classes),
				What: s.classes[k].nodes[0] + " " + string(scheme)})
			if err := s.permitClass(ctx, ph, k, scheme, &out); err != nil {
				return err
			}
		}
		if first == nil {
			first = out.why
		}
		s.warnLeftOut(ph, scheme, &out)
	}

	s.preferOnly(ph)
	for k, list := range ph.options {
		hasDecodes := s.classes[k].shared && ph.name == "prefill"
		if len(list) > 0 || hasDecodes {
			continue
		}
		if first != nil {
			return first
		}
		return diag.New(diag.ClassInfeasible, "solve: no scheme is left for %s of %s", s.classes[k].nodes[0], ph.name).
			WithHint("permit a32/w32 as well, or measure what the permitted ones cost: " +
				"hetc calibrate --model DIR --text FILE -o cal.yaml")
	}
	return nil
}

// leftOut lists the nodes for which a scheme is left out: those for which its loss is not known, and those that cannot
// have it, for the reason of the first.
type leftOut struct {
	unmeasured, failing []string
	why                 error
}

// permitClass adds a scheme to the options of a class, or notes in out why not. An error ends the solve. It tests cheap
// reasons first: not permitted here, pointless, of unknown loss. Pricing comes last.
func (s *schemeChoice) permitClass(ctx context.Context, ph *phase, k int, scheme op.Scheme, out *leftOut) error {
	class := &s.classes[k]
	if !slices.Contains(s.permitted(class, ph.name), scheme) {
		return nil
	}
	if s.dominatedByDynamic(ph, class, scheme) {
		return nil
	}
	_, known := s.loss(class, scheme)
	if !known && ph.max > 0 { // without a calibration nothing may be lost
		out.unmeasured = append(out.unmeasured, class.nodes...)
		return nil
	}

	err := s.checkScales(class, scheme)
	if err == nil {
		err = s.usable(ctx, ph, k, scheme)
	}
	if full := s.budget.check("the candidates of operators"); full != nil {
		return full
	}
	if err == nil && class.shared && ph.name == "decode" { // runs in prefill's programs too
		err = s.usable(ctx, s.phases[0], k, scheme)
	}
	if err == nil {
		ph.options[k] = append(ph.options[k], scheme)
		return nil
	}

	if err := ctx.Err(); err != nil {
		return diag.New(diag.ClassInterrupted, "price candidates: %w", err)
	}
	out.failing = append(out.failing, class.nodes...)
	if out.why == nil {
		out.why = err
	}
	return nil
}

// warnLeftOut warns of the nodes for which a scheme is left out.
func (s *schemeChoice) warnLeftOut(ph *phase, scheme op.Scheme, out *leftOut) {
	all := len(s.classes)
	if ph.name == "prefill" {
		all -= s.countHeads()
	}
	of := func(nodes []string) string {
		if len(nodes) >= all {
			return ph.name
		}
		return ph.name + " for " + strings.Join(nodes, ", ")
	}

	if out.unmeasured != nil && s.in.Calibration != nil {
		s.warn("scheme %q is left out of %s: the calibration says nothing about what it costs",
			scheme, of(out.unmeasured))
	}
	if out.failing != nil && len(ph.permits) > 1 {
		s.warn("scheme %q is left out of %s: %v", scheme, of(out.failing), out.why)
	}
}

// preferOnly leaves out the schemes with which more of a class is executed by processors outside Input.Only than with
// others.
func (s *schemeChoice) preferOnly(ph *phase) {
	if len(s.in.Only) == 0 {
		return
	}
	left := map[op.Scheme][]string{}
	var order []op.Scheme
	for j, list := range ph.options {
		fewest := math.MaxInt
		foreign := make([]int, len(list))
		for i, scheme := range list {
			foreign[i] = s.countForeign(ph, j, scheme)
			fewest = min(fewest, foreign[i])
		}
		ph.options[j] = nil

		for i, scheme := range list {
			if foreign[i] == fewest {
				ph.options[j] = append(ph.options[j], scheme)
				continue
			}
			if left[scheme] == nil {
				order = append(order, scheme)
			}
			left[scheme] = append(left[scheme], s.classes[j].nodes...)
		}
	}
	for _, scheme := range order {
		s.warn("scheme %q is left out of %s for %s: --only %s is kept with others",
			scheme, ph.name, strings.Join(left[scheme], ", "), strings.Join(s.in.Only, ","))
	}
}

// countForeign counts the products of a usable class, over the programs of a phase, that no processor of Input.Only
// executes in a scheme.
func (s *schemeChoice) countForeign(ph *phase, k int, scheme op.Scheme) (count int) {
	isOnly := func(share planir.Share) bool { return slices.Contains(s.in.Only, share.Proc) }
	usesOnly := func(candidate price.Candidate) bool { return slices.ContainsFunc(candidate.Shares, isOnly) }
	for _, rows := range ph.rows {
		for _, name := range s.classes[k].nodes {
			set := s.candidateSets[nodeKey{rows, name, scheme}]
			if set != nil && !slices.ContainsFunc(set.list, usesOnly) {
				count++
			}
		}
	}
	return count
}

// dominatedByDynamic reports whether the static scheme need not be considered in a class: its dynamic-scale variant is
// at least as accurate, costs the same, and runs on every processor that runs the static one. A scheme that the
// workload lists is considered all the same.
func (s *schemeChoice) dominatedByDynamic(ph *phase, class *productClass, scheme op.Scheme) bool {
	dynamic := scheme.Twin()
	if !scheme.Static() || ph.asked || !slices.Contains(ph.permits, dynamic) {
		return false
	}
	onlyStatic := func(proc planir.Proc) bool {
		return slices.Contains(proc.Schemes, scheme) && !slices.Contains(proc.Schemes, dynamic)
	}
	if slices.ContainsFunc(s.Procs, onlyStatic) {
		return false
	}
	staticLoss, measured := s.loss(class, scheme)
	if !measured {
		return true
	}
	dynamicLoss, measured := s.loss(class, dynamic)
	return measured && dynamicLoss <= staticLoss
}

// checkScales returns an error if the calibration lacks static scales in any layer of any node of the class.
func (s *request) checkScales(class *productClass, scheme op.Scheme) error {
	if !scheme.Static() {
		return nil
	}
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for _, node := range sec.Nodes {
			name := sec.Name + "." + node.Name
			if !slices.Contains(class.nodes, name) {
				continue
			}
			for layer := range max(1, sec.Layers) {
				if err := s.checkScalesIn(name, sec.First+layer, scheme); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// checkScalesIn does the work of checkScales for one layer of one node.
func (s *request) checkScalesIn(name string, layer int, scheme op.Scheme) error {
	const again = "measure this model again: hetc calibrate --model DIR --text FILE -o cal.yaml"
	activation := s.in.Calibration.Activation(name, layer)
	switch {
	case activation == nil:
		return diag.New(diag.ClassInput,
			"%q in layer %d with %q: the calibration says nothing about what enters it", name, layer, scheme).
			WithHint(again)
	case scheme.Grid() && len(activation.OutMax) == 0:
		return diag.New(diag.ClassInput, "%q in layer %d with %q: the calibration says nothing about what it "+
			"computes, and steps of results are wanted", name, layer, scheme).WithHint(again)
	}
	if scales := scheme.Scales(); scales > 1 && s.in.Calibration.RowScales(name, layer, scales) == nil {
		return diag.New(diag.ClassInput, "%q in layer %d with %q: the calibration says nothing about "+
			"%d static scales of what enters it", name, layer, scheme, scales).
			WithHint("measure them: hetc calibrate --model DIR --text FILE --schemes %s -o cal.yaml", scheme)
	}
	return nil
}

// pricingAssignment returns the assignment in which a class in a scheme is priced: uniform, but for experts that do not
// have it.
func (s *schemeChoice) pricingAssignment(ph *phase, k int, scheme op.Scheme) (assignment, error) {
	schemes := s.uniform(scheme)
	if scheme.Experts() {
		return schemes, nil
	}
	if class := &s.classes[k]; class.expert {
		return nil, diag.New(diag.ClassInput,
			"%q: scheme %q is one of products by a single matrix, and experts have others", class.nodes[0], scheme).
			WithHint("permit one for them beside it, such as %s", op.A8TQ8C)
	}
	theirs := op.A32W32
	if i := slices.IndexFunc(ph.permits, op.Scheme.Experts); i >= 0 {
		theirs = ph.permits[i]
	}
	for i := range schemes {
		if s.classes[i].expert {
			schemes[i] = theirs
		}
	}
	return schemes, nil
}

// usable prices a class in a scheme in all programs of a phase. It returns the error of a node of the class, or of a
// node without a scheme beside it; other products have classes of their own.
func (s *schemeChoice) usable(ctx context.Context, ph *phase, k int, scheme op.Scheme) error {
	schemes, err := s.pricingAssignment(ph, k, scheme)
	if err != nil {
		return err
	}
	ofClass := func(n lower.Node) bool { return slices.Contains(s.classes[k].nodes, n.Name) }

	for _, rows := range ph.rows {
		sections, err := s.expand(rows, schemes)
		if err != nil {
			return err
		}
		for i := range sections {
			sec := &sections[i]
			if isRepeated(sections, i) || !slices.ContainsFunc(sec.Nodes, ofClass) {
				continue
			}

			if err := ctx.Err(); err != nil {
				return err
			}
			s.priceSection(sec, rows)
			for j := range sec.Nodes {
				node := &sec.Nodes[j]
				set := s.candidateSets[keyOfNode(rows, node)]
				if set.err != nil && (ofClass(*node) || !node.Op().HasScheme()) {
					return set.err
				}
			}
		}
	}
	return nil
}
