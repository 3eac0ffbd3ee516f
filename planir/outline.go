package planir

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/hetc/hetc/planir/source"
)

// Outline renders what a plan decides and predicts as short text with one fact a line, in a fixed order and without
// alignment, so that two plans differ in exactly the lines whose facts differ. Alternatives and the program appear as
// digests only: Dump shows the program.
//
// Times are milliseconds in the first part and microseconds beside decisions; memory is in bytes.
func Outline(plan *Plan) (string, error) {
	var text outlineText
	text.model(plan)
	text.heading(outlineTimes)
	text.times(plan)
	text.heading("problems")
	text.problems(plan)
	if plan.Memory != nil {
		text.heading(outlineMemory)
		for _, line := range plan.Memory.outline() {
			text.WriteString(line + "\n")
		}
	}
	text.heading(outlineDecisions)
	for i := range plan.Decisions {
		decision := &plan.Decisions[i]
		text.line("%s@%d: %s %s%s, %s us", decision.Node, decision.Rows, decision.Strategy, decision.ShareText(),
			prefixed(" in ", string(decision.Scheme)), thousandths(decision.PredictNS))
	}
	text.heading("digests")
	if err := text.digests(plan); err != nil {
		return "", err
	}
	return text.String(), nil
}

// outlineText is an outline as far as it is written. Each method writes a part of it.
type outlineText struct{ strings.Builder }

// line writes a line.
func (o *outlineText) line(format string, args ...any) { fmt.Fprintf(o, format+"\n", args...) }

// heading begins a part.
func (o *outlineText) heading(title string) { o.line("\n%s", title) }

// model writes what the plan is for, and what it decides for the whole model.
func (o *outlineText) model(plan *Plan) {
	o.line("%s on %s%s", plan.Model.Name, plan.SoC.Name, prefixed(", from ", plan.SoC.Times()))
	o.line("context %d, cache %s%s", plan.MaxContext, plan.KV, prefixed(", folds ", strings.Join(plan.Folds, " ")))
	if plan.Attention != nil {
		o.line("%s", plan.Attention.Text())
		for i := range plan.Attention.Pipelines {
			o.line("%s", plan.Attention.Pipelines[i].Text())
		}
	}
	for i := range plan.Shadows {
		o.line("shadow outliers of %s: %s", plan.Shadows[i].Node, plan.Shadows[i].LayersText())
	}
	for _, entry := range plan.Outliers {
		o.line("outliers of %s@%d: %d channels at once", entry.Node, entry.Rows, entry.Channels)
	}
	for _, sum := range plan.hotByWeight() {
		o.line("hot rows of %s: %d in %d layers", sum.weight, sum.rows, sum.layers)
	}
	if sources := outlineSources(plan); sources != "" {
		o.line("decisions by source: %s", sources)
	}
}

// times writes the predictions, and what drafts make of them.
func (o *outlineText) times(plan *Plan) {
	for i := range plan.Predictions {
		o.line("%s", plan.Predictions[i].outline())
	}
	if drafts := plan.Drafts; drafts != nil {
		_, ns := drafts.Best(drafts.Acceptance, drafts.Tokens)
		o.line("drafts of %d tokens, acceptance %.3f: %s ms a token, plain %s", drafts.Tokens, drafts.Acceptance,
			thousandths(int64(ns)/1e3), thousandths(drafts.PlainNS/1e3))
	}
}

// problems writes what the solver found, and the quality that was measured.
func (o *outlineText) problems(plan *Plan) {
	for i := range plan.Solver {
		solve := &plan.Solver[i]
		o.line("%s: %s, objective %d %s, bound %d %s, %d choices", solve.Problem, solve.Status, solve.ObjectiveNS,
			plan.UnitOf(solve), solve.BoundNS, plan.UnitOf(solve), solve.Choices)
	}
	for _, quality := range plan.Quality {
		o.line("mean KL of %s: %.6f%s", quality.Phase, quality.KL, prefixed(" of at most ", positive(quality.MaxKL)))
	}
}

// digests writes what stands for everything that has no line.
func (o *outlineText) digests(plan *Plan) error {
	program, err := json.Marshal(plan.Program)
	if err != nil {
		return fmt.Errorf("outline of a plan: %w", err)
	}
	whole, err := Digest(plan)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(program)
	o.line("program %s\nplan %s", hex.EncodeToString(sum[:]), whole)
	return nil
}

// outlineSources counts the decisions of each source, the strongest first: "measured 38, extrapolated 3".
func outlineSources(plan *Plan) string {
	var parts []string
	for _, from := range source.All {
		count := 0
		for i := range plan.Decisions {
			if plan.Decisions[i].Source == from {
				count++
			}
		}
		if count > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", from, count))
		}
	}
	return strings.Join(parts, ", ")
}

// Headings of an outline whose parts OutlineChanges compares by name.
const (
	outlineTimes     = "times in ms"
	outlineMemory    = "memory in bytes"
	outlineDecisions = "decisions"
)

// outline returns one line: "decode: 20.577 (19.897..22.121), cpu alone 24.939; 131.492 mJ (modelled)".
func (p *Prediction) outline() string {
	text := fmt.Sprintf("%s: %s (%s..%s)", p.Program, milliseconds(p.PlanNS), milliseconds(p.LowNS),
		milliseconds(p.HighNS))
	for _, single := range p.Singles {
		text += fmt.Sprintf(", %s alone %s", single.Proc, milliseconds(single.NS))
	}
	if p.EnergyUJ > 0 {
		text += fmt.Sprintf("; %s mJ (modelled)", thousandths(p.EnergyUJ))
	}
	return text
}

// outline returns one line for each part of the memory that is not empty, the total last.
func (m *Memory) outline() []string {
	var lines []string
	for _, part := range []struct {
		name  string
		bytes int64
	}{
		{"weights", m.Weights}, {"weights of prefill only", m.PrefillWeights},
		{"weights of decode only", m.DecodeWeights},
		{"embedding rows", m.Tables}, {"copied hot rows", m.Hot}, {"prepacked copies", m.Prepacked}, {"cache", m.Cache}, {"buffers", m.Pool},
		{"scratch", m.Work}, {"program", m.Fixed}, {"limit", m.Max}, {"total", m.Total},
	} {
		if part.bytes > 0 {
			lines = append(lines, fmt.Sprintf("%s: %d", part.name, part.bytes))
		}
	}
	return lines
}

// OutlineChanges describes how two outlines for one model, SoC and workload differ, in lines for a person: every time
// and size of memory that changed, with its ratio, then how many decisions changed. It returns nil for equal outlines.
// If only a part differs that it does not compare, it says so.
func OutlineChanges(before, after string) []string {
	if before == after {
		return nil
	}
	var changes []string
	for _, part := range []string{outlineTimes, outlineMemory} {
		old, now := outlinePart(before, part), outlinePart(after, part)
		unit := part[strings.LastIndexByte(part, ' ')+1:]
		for _, name := range now.names {
			if change := ratioText(old.facts[name], now.facts[name], unit); change != "" {
				changes = append(changes, name+": "+change)
			}
		}
		for _, name := range old.names {
			if now.facts[name] == "" {
				changes = append(changes, name+": no more")
			}
		}
	}
	// The last comma of a decision separates what was chosen from its time, which may change alone.
	old, now := outlinePart(before, outlineDecisions), outlinePart(after, outlineDecisions)
	differ := 0
	for _, name := range now.names {
		choice, _, _ := cutLast(now.facts[name], ", ")
		was, _, _ := cutLast(old.facts[name], ", ")
		if choice != was {
			differ++
		}
	}
	if differ > 0 {
		changes = append(changes, fmt.Sprintf("%d of %d decisions differ", differ, len(now.names)))
	}
	if less := len(old.names) - len(now.names); less > 0 {
		changes = append(changes, fmt.Sprintf("%d decisions are no more", less))
	}
	if changes == nil {
		return []string{"the same times, memory and decisions; proofs, sources, alternatives or steps differ"}
	}
	return changes
}

// outlineFacts are the lines "name: fact" under one heading, in their order.
type outlineFacts struct {
	names []string
	facts map[string]string
}

// outlinePart reads the lines under a heading back from an outline.
func outlinePart(outline, heading string) outlineFacts {
	part := outlineFacts{facts: map[string]string{}}
	_, rest, _ := strings.Cut(outline, "\n\n"+heading+"\n")
	rest, _, _ = strings.Cut(rest, "\n\n")
	for line := range strings.SplitSeq(strings.TrimSuffix(rest, "\n"), "\n") {
		if name, fact, ok := strings.Cut(line, ": "); ok {
			part.names = append(part.names, name)
			part.facts[name] = fact
		}
	}
	return part
}

// ratioText compares the numbers that two facts begin with: "20.577 -> 20.320 ms (-1.25 %)", "" for equal ones.
func ratioText(before, after, unit string) string {
	old, _, _ := strings.Cut(before, " ")
	now, _, _ := strings.Cut(after, " ")
	if old == now {
		return ""
	}
	was, err := strconv.ParseFloat(old, 64)
	if err != nil || was == 0 {
		return fmt.Sprintf("new, %s %s", now, unit)
	}
	is, err := strconv.ParseFloat(now, 64)
	if err != nil {
		return fmt.Sprintf("%s -> %s", old, now)
	}
	return fmt.Sprintf("%s -> %s %s (%+.2f %%)", old, now, unit, 100*(is/was-1))
}

// cutLast cuts a text as strings.Cut does, but at the last separator.
func cutLast(text, separator string) (before, after string, found bool) {
	if at := strings.LastIndex(text, separator); at >= 0 {
		return text[:at], text[at+len(separator):], true
	}
	return text, "", false
}

// prefixed is text after prefix, "" for no text.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// positive writes a limit, "" for none.
func positive(limit float64) string {
	if limit <= 0 {
		return ""
	}
	return strconv.FormatFloat(limit, 'g', -1, 64)
}

// milliseconds writes ns in ms, to the microsecond.
func milliseconds(ns int64) string { return fmt.Sprintf("%.3f", float64(ns)/1e6) }

// thousandths writes a count of thousandths: nanoseconds as microseconds, microjoules as millijoules.
func thousandths(count int64) string { return fmt.Sprintf("%d.%03d", count/1000, count%1000) }
