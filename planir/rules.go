package planir

import (
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// Rule is one condition of legality. Rules look at the plan alone; whether it fits a model and a
// SoC is planir/check's question.
type Rule struct {
	ID       string         // "P001"; the code of its findings
	Sentence string         // what holds; the hint of its findings
	check    func(*checker) // adds a finding for each place that breaks it
}

// Rules lists every rule in the order it is checked. Later rules rely on earlier ones: checking
// stops after the first rule that is broken.
var Rules = []Rule{
	{"P001", "the schema is this version's, every name is unique, ordered and well formed, every size within bounds",
		(*checker).names},
	{"P002", "every reference resolves: processors, graphs, buffers, packs, weights, flags, programs",
		(*checker).references},
	{"P003", "every graph is valid, and its processor executes its operators, schemes and rows, and holds its weights",
		(*checker).graphs},
	{"P004", "a step's views lie within their buffers and have the types and shapes of its graph's operands",
		(*checker).views},
	{"P005", "a step's weight references lie within their packs and have the shapes of its graph's weights",
		(*checker).weights},
	{"P006", "of every weight a program uses, its steps use each column and row of the matrix exactly once",
		(*checker).tiling},
	{"P007", "each flag of a section is set by exactly one step", (*checker).flags},
	{"P008", "lanes never wait for each other in a circle", (*checker).deadlock},
	{"P009", "two steps that touch the same elements, one of them writing, are ordered by flags", (*checker).races},
	{"P010", "every element that is read has been written before", (*checker).written},
	{"P011", "processors that share a core have steps in one section only when it is the first core of each, where they " +
		"take turns on one thread, and never on a simulated SoC",
		(*checker).cores},
	{"P012", "the decider names a program for every number of tokens up to the context; ids enter and logits leave",
		(*checker).decider},
	{"P013", "shares of one operator use the same scheme", (*checker).schemes},
	{"P014", "every batch has one program, whose rows are of a sequence each, and the cache and the logits have a place " +
		"for every sequence; in all other programs rows are of one sequence",
		(*checker).batches},
	{"P016", "a processor whose artifacts hold their weights reads packs in artifacts only, whole, which no other " +
		"processor reads; every step of such a graph reads the same ones, and so do the graphs of one context",
		(*checker).weightsInArtifacts},
	{"P017", "two processors that work for different requests at the same time share no core, neither the one that " +
		"processes prompts with the control processor; a program of one processor has steps and buffers of that " +
		"processor only",
		(*checker).beside},
	{"P018", "capacity tiers are for prompts of some number of rows; in each layer they name as many experts as their " +
		"groups have slots, each once; where experts have no slot, or overflow is exact, dynamic products compute " +
		"rows",
		(*checker).experts},
	{"P019", "drafts are verified by one call of a program that computes the bits of plain decoding, and are as long as " +
		"lets a token take the least predicted time at their acceptance",
		(*checker).drafts},
	{"P030", "programs with sparse attention are programs of the plan that process rows of one sequence, and keep a " +
		"share of the positions in blocks of queries; no other program has such operators, and decode has them " +
		"only where it has no batches",
		(*checker).attention},
	{"P031", "chunks in flight are whole chunks of one prompt, in a program of as many rows; in every layer, steps on " +
		"the same heads of the cache work on rows in ascending order, and of two steps that touch the same values " +
		"that of the earlier layer comes first",
		(*checker).inFlight},
	{"P032", "the heads of an attention pass through a pipeline in a program with sparse attention only; each share by " +
		"heads is executed once, on each processor in the pipeline's order",
		(*checker).headPipelines},
}

// Check applies every rule and returns all findings of the first rule that is broken.
func Check(plan *Plan) diag.List {
	check := &checker{
		plan: plan, buffers: map[string]*Buffer{}, graphOf: map[string]*Graph{}, packs: map[string]*Pack{},
		weightOf: map[string]*op.Weight{}, runs: map[*Section]*unrolled{},
	}
	for i := range Rules {
		check.rule = &Rules[i]
		check.rule.check(check)
		if len(check.found) > 0 {
			break
		}
	}
	check.found.Sort()
	return check.found
}

// maxFindings bounds what is told of one plan.
const maxFindings = 100

// checker is the state of checking one plan.
type checker struct {
	plan  *Plan
	rule  *Rule
	found diag.List

	// By name, filled by references.
	buffers  map[string]*Buffer
	graphOf  map[string]*Graph
	packs    map[string]*Pack
	weightOf map[string]*op.Weight

	runs map[*Section]*unrolled // filled by deadlock, for races and written
}

// fail adds a finding of the present rule at a data path.
func (c *checker) fail(path, format string, args ...any) {
	if len(c.found) >= maxFindings {
		return
	}
	finding := diag.New(diag.ClassIllegal, format, args...).
		WithCode(c.rule.ID).WithHint("rule %s: %s", c.rule.ID, c.rule.Sentence)
	finding.Path = path
	c.found = append(c.found, finding)
}
