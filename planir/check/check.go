// Package check knows whether a plan is legal for a model on a SoC. It trusts nothing that the plan says about
// them: every claim is recomputed from the model, the SoC and the decisions, and then compared.
//
// Each rule is one method of checker that adds findings. planir.Check comes first and covers what needs neither model
// nor SoC, so that the rules here may index the plan without testing it.
package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/socs"
)

// Rule is one condition that relates a plan to a model or a SoC.
type Rule struct {
	ID       string         // "P020"; the code of its findings
	Sentence string         // what holds; the hint of its findings
	check    func(*checker) // adds a finding for each place that breaks it
}

// Rules continues planir.Rules. Later rules rely on earlier ones: checking stops after the first
// that is broken.
var Rules = []Rule{
	{"P020", "the plan was made for this model: same digest, tokens and context", (*checker).model},
	{"P021", "the plan was made for this SoC: same name, machine and control processor", (*checker).soc},
	{"P022", "the plan's processors are the SoC's and claim nothing that those cannot do", (*checker).procs},
	{"P023", "every operator is decided once for every number of rows that has a program, and nothing else is",
		(*checker).decisions},
	{"P024", "every weight is the model's, with its shape and tensors", (*checker).weights},
	{"P025", "every pack has the size that its layout gives it", (*checker).packs},
	{"P026", "the program is what its decisions lower to", (*checker).program},
	{"P027", "what a processor loads fits its address space and number of graphs", (*checker).capacity},
	{"P028", "the memory that the plan says it takes is what its program holds, and within its bound",
		(*checker).memory},
	{"P029", "capacity tiers are for the experts that the model has, in all of their layers", (*checker).tiers},
}

// Plan applies planir's rules and then this package's. Without a SoC (nil) the rules about it are left
// out: what a plan carries of its processors is then taken as given. Findings of severity Warning do not
// make a plan illegal.
func Plan(plan *planir.Plan, model *models.Model, soc *socs.SoC) diag.List {
	// What is malformed by itself is told alone; findings about a model would only follow from it.
	if found := planir.Check(plan); len(found) > 0 {
		return found
	}
	graph := model.Graph()
	check := &checker{plan: plan, ofModel: model, graph: &graph, onSoC: soc}
	for i := range Rules {
		check.rule = &Rules[i]
		check.rule.check(check)
		if check.found.Err() != nil {
			break
		}
	}
	check.found.Sort()
	return check.found
}

// checker is the state of checking one plan; soc is nil where there is none to compare with.
type checker struct {
	plan    *planir.Plan // not changed
	ofModel *models.Model
	graph   *models.Graph
	onSoC   *socs.SoC
	rule    *Rule
	found   diag.List
}

// fail adds a finding of the present rule at a data path, and returns it for hints.
func (c *checker) fail(path, format string, args ...any) *diag.Diagnostic {
	diagnostic := diag.New(diag.ClassIllegal, format, args...).WithCode(c.rule.ID).
		WithHint("rule %s: %s", c.rule.ID, c.rule.Sentence)
	diagnostic.Path = path
	c.found = append(c.found, diagnostic)
	return diagnostic
}

// model checks rule P020. The digest covers weights and configuration; tokens and context are compared too, for better
// messages.
func (c *checker) model() {
	digest, err := c.ofModel.Digest()
	if err != nil {
		c.fail("model.digest", "%v", err)
		return
	}
	ref := c.plan.Model
	if ref.Digest != digest {
		c.fail("model.digest", "plan is for model %q with digest %.12s, and model %q has %.12s", ref.Name, ref.Digest,
			c.ofModel.Name, digest).
			WithHint("solve again for this model")
	}
	if ref.BOS != c.ofModel.BOS || !slices.Equal(ref.EOS, c.ofModel.EOS) {
		c.fail("model", "plan starts texts with token %d and ends them with %v, the model with %d and %v", ref.BOS,
			ref.EOS, c.ofModel.BOS, c.ofModel.EOS)
	}
	if c.plan.MaxContext > c.ofModel.MaxContext {
		c.fail("max_context", "plan caches %d positions, and the model has %d", c.plan.MaxContext, c.ofModel.MaxContext)
	}
}

// soc checks rule P021. A SoC whose speeds have changed gives a warning: speeds change no legality.
func (c *checker) soc() {
	if c.onSoC == nil {
		return
	}
	ref := c.plan.SoC
	if ref.Name != c.onSoC.Name || ref.Fingerprint != c.onSoC.Fingerprint {
		c.fail("soc", "plan is for SoC %q (fingerprint %q), and this is %q (%q)", ref.Name, ref.Fingerprint,
			c.onSoC.Name, c.onSoC.Fingerprint).
			WithHint("solve again for this SoC")
	}

	if ref.Control != c.onSoC.Control {
		c.fail("soc.control", "control processor is %q, and the SoC's is %q", ref.Control, c.onSoC.Control)
	}
	if ref.Simulated != c.onSoC.Simulated() {
		c.fail("soc.simulated", "plan says simulated %v, and the SoC is simulated: %v", ref.Simulated,
			c.onSoC.Simulated())
	}

	digest, err := c.onSoC.Digest()
	if err != nil {
		c.fail("soc.digest", "%v", err)
	} else if digest != ref.Digest {
		// Rates may have been measured again: what counts for legality is compared one by one.
		c.fail("soc.digest", "SoC %q has changed since the plan was made", c.onSoC.Name).
			WithHint("solve again if its speeds have changed").Severity = diag.Warning
	}
}

// Proc returns what a plan carries of a SoC's processor. Maps and slices are copied, so that a plan may be changed
// without changing the SoC. A missing tile counts as 1.
func Proc(proc *socs.Processor) planir.Proc {
	out := planir.Proc{
		Name: proc.Name, Kind: proc.Kind, Driver: proc.Driver, Select: proc.Select, Options: maps.Clone(proc.Options),
		Cores: slices.Clone(proc.Cores), Wait: proc.Wait,
		Set: proc.Set.Clone(), Shares: proc.WeightsInArtifacts && proc.WeightBytes != socs.WeightsPerGraph,
		GraphBytes: proc.GraphBytes,
	}
	out.Tile.N, out.Tile.K = max(1, proc.Tile.N), max(1, proc.Tile.K)
	out.Memory = proc.KernelMemory()
	return out
}

// procs checks rule P022: it compares the processors with those of the SoC, or with those of its device where the plan
// is for that.
func (c *checker) procs() {
	if c.onSoC == nil {
		return
	}
	soc := c.onSoC
	if c.plan.SoC.Target {
		var err error
		if soc, err = c.onSoC.Restricted(); err != nil {
			c.fail("soc.target", "the plan is for the device, and %v", err)
			return
		}
	}
	for i := range c.plan.Procs {
		have := &c.plan.Procs[i]
		path := fmt.Sprintf("procs[%d]", i)
		described := soc.Processor(have.Name)
		switch {
		case described != nil:
			c.proc(path, have, described)
		case c.onSoC.Processor(have.Name) != nil:
			c.fail(path, "SoC %q does not say how its device executes what processor %q is given", c.onSoC.Name,
				have.Name)
		default:
			c.fail(path, "SoC %q has no processor %q", c.onSoC.Name, have.Name)
		}
	}
}

// optionText is a driver's options as messages show them: "kernels: amx", "none".
func optionText(options map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(options)) {
		parts = append(parts, key+": "+options[key])
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// proc compares a processor of the plan with the SoC's. Identity must agree; capabilities and limits may be less than
// the SoC states, never more.
func (c *checker) proc(path string, have *planir.Proc, described *socs.Processor) {
	can := Proc(described)
	differs := func(what string, got, want any) {
		c.fail(path+"."+what, "processor %q: %s is %v, and the SoC says %v", have.Name, what, got, want)
	}
	for _, fact := range []struct {
		key       string
		same      bool
		have, can any
	}{
		{"kind", have.Kind == can.Kind, have.Kind, can.Kind},
		{"driver", have.Driver == can.Driver, have.Driver, can.Driver},
		{"select", have.Select == can.Select, have.Select, can.Select},
		{"options", maps.Equal(have.Options, can.Options), optionText(have.Options), optionText(can.Options)},
		{"cores", slices.Equal(have.Cores, can.Cores), have.Cores, can.Cores},
		{"shares", have.Shares == can.Shares, have.Shares, can.Shares},
	} {
		if !fact.same {
			differs(fact.key, fact.have, fact.can)
		}
	}

	// Capabilities may be a subset: a plan may use less than the SoC offers.
	for _, difference := range have.Beyond(&can.Set) {
		differs(difference.Key, difference.Have, difference.Can)
	}

	// The SoC's processor must execute what the plan's graphs on it use.
	for _, kind := range c.kinds(have) {
		if !described.Executes(kind) {
			differs("kinds", kind, can.Kinds)
		}
		if kind.Has("kv") && len(described.KV) > 0 && !slices.Contains(described.KV, c.plan.KV) {
			differs("kv", c.plan.KV, described.KV)
		}
	}

	if can.GraphBytes > 0 && (have.GraphBytes == 0 || have.GraphBytes > can.GraphBytes) {
		differs("graph_bytes", have.GraphBytes, can.GraphBytes)
	}
}

// kinds lists the operators that graphs on a processor execute.
func (c *checker) kinds(proc *planir.Proc) []op.Kind {
	used := map[op.Kind]bool{}
	for i := range c.plan.Program.Graphs {
		graph := &c.plan.Program.Graphs[i]
		if graph.Proc != proc.Name {
			continue
		}
		for _, node := range graph.Graph.Nodes {
			used[node.Op.Kind] = true
		}
	}
	return slices.Sorted(maps.Keys(used))
}

// decisions checks rule P023. It expands the model at every number of rows that has a program, as lowering does, and
// compares the nodes with the decisions both ways.
func (c *checker) decisions() {
	rows := map[int]bool{}
	for i := range c.plan.Program.Programs {
		rows[c.plan.Program.Programs[i].Rows] = true
	}
	known := map[string]bool{} // node@rows
	for _, count := range slices.Sorted(maps.Keys(rows)) {
		sections, err := lower.Expand(lower.GraphOf(c.plan, c.graph, count), count, c.plan.MaxContext, c.plan.KV,
			func(node string) op.Scheme { return c.scheme(node, count) }, c.plan.TiersOf(count), c.plan.Channels)
		if err != nil {
			c.fail("decisions", "rows %d: %v", count, err)
			return
		}
		for _, section := range sections {
			for _, node := range section.Nodes {
				c.decided(&section, node.Name, count, known)
			}
		}
	}

	// The other way round: no decision may be for an operator that the program lacks.
	for i, decision := range c.plan.Decisions {
		if !known[key(decision.Node, decision.Rows)] {
			c.fail(fmt.Sprintf("decisions[%d]", i), "%q at %d rows is no operator of a program", decision.Node,
				decision.Rows)
		}
	}
}

// decided checks that a node has a decision, and adds it to the known ones. A node of the head may be decided at one
// row.
func (c *checker) decided(section *lower.Section, node string, rows int, known map[string]bool) {
	known[key(node, rows)] = true
	found := c.plan.DecisionFor(node, rows) != nil
	if section.Logits {
		known[key(node, 1)] = true
		found = found || c.plan.DecisionFor(node, 1) != nil
	}
	if !found {
		c.fail("decisions", "%q is not decided at %d rows", node, rows)
	}
}

// scheme returns the decided scheme of a node; a node of the head is decided at one row.
func (c *checker) scheme(node string, rows int) op.Scheme {
	for _, tried := range []int{rows, 1} {
		if decision := c.plan.DecisionFor(node, tried); decision != nil {
			return decision.Scheme
		}
	}
	return op.A32W32 // reported as missing
}

// key identifies a decision: "layers.qkv@256".
func key(node string, rows int) string { return fmt.Sprintf("%s@%d", node, rows) }

// weights checks rule P024. Weights of the model must equal the model's; computed ones, such as static scales, must
// have the names that lowering gives them, and none of the model's.
func (c *checker) weights() {
	for i := range c.plan.Program.Weights {
		weight := &c.plan.Program.Weights[i]
		path := fmt.Sprintf("program.weights[%d]", i)
		want := c.graph.Weight(weight.Name)
		name, what := computedName(weight)

		switch {
		case name != "" && (weight.Name != name || want != nil):
			c.fail(path, "weight %q is %s, want the name %q", weight.Name, what, name)
		case name != "": // its contents are the subject of P002, its use that of P026
		case want == nil:
			c.fail(path, "model %q has no weight %q", c.ofModel.Name, weight.Name)
		case !sameWeight(weight, want):
			c.fail(path, "weight %q is [%d,%d] from %v, and the model's is [%d,%d] from %v", weight.Name, weight.K,
				weight.N, weight.From, want.K, want.N, want.From)
		}
	}
}

// computedName returns the name that lowering gives a computed weight, and what the weight is; "" for a weight of the
// model.
func computedName(weight *op.Weight) (name, what string) {
	switch {
	case weight.ScaleOf != "":
		name = lower.ScaleWeight(weight.ScaleOf, weight.N)
		if weight.Kind() == op.StepsWeight {
			name = lower.StepsWeight(weight.ScaleOf)
		} else if weight.Outliers > 0 {
			name = lower.InnerScaleWeight(weight.ScaleOf)
		}
		return name, fmt.Sprintf("the static scale of %q", weight.ScaleOf)
	case weight.SlotsOf > 0:
		return lower.SlotsWeight(weight.SlotsOf), "the list of experts in slots"
	case weight.HeadsOf != "":
		return models.HeadsWeight(weight.HeadsOf), fmt.Sprintf("of the heads of %q", weight.HeadsOf)
	}
	return "", ""
}

// sameWeight compares a stored weight with the model's. Its layers are left out: they follow from the program (P026).
func sameWeight(have, want *op.Weight) bool {
	sameShape := have.K == want.K && have.N == want.N && have.Transposed == want.Transposed &&
		have.Experts == want.Experts
	return sameShape && have.Plus == want.Plus && slices.Equal(have.From, want.From) &&
		slices.Equal(have.Interleave, want.Interleave) && slices.Equal(have.Const, want.Const)
}

// packs checks rule P025. Offsets in weights blobs follow from these sizes.
func (c *checker) packs() {
	for i, stored := range c.plan.Program.Packs {
		path := fmt.Sprintf("program.packs[%d]", i)
		size, err := pack.Bytes(stored.Spec())
		if err != nil {
			c.fail(path, "pack %q: %v", stored.Name, err)
		} else if size != stored.Bytes {
			c.fail(path, "pack %q has %d bytes, and layout %q gives %d", stored.Name, stored.Bytes, stored.Layout, size)
		}
	}
}

// program checks rule P026: it lowers the decisions again and compares encodings, which are equal for equal plans.
func (c *checker) program() {
	// The copy shares all but the program with the plan. Lowering reads decisions and writes the program.
	again := *c.plan
	again.Program = planir.Program{}
	if err := lower.Lower(&again, c.graph); err != nil {
		c.fail("decisions", "%v", err)
		return
	}
	want, err := planir.Encode(&again)
	if err != nil {
		c.fail("program", "%v", err)
		return
	}
	have, err := planir.Encode(c.plan)
	if err != nil {
		c.fail("program", "%v", err)
		return
	}
	if string(have) == string(want) {
		return
	}
	c.firstDifference(&again)
}

// firstDifference names the first line of the plan's dump that differs from that of the plan lowered again. An encoding
// has one line only, and a dump one for each part of a program, in the same order.
func (c *checker) firstDifference(again *planir.Plan) {
	stored, computed := strings.Split(planir.Dump(c.plan), "\n"), strings.Split(planir.Dump(again), "\n")
	for i := range max(len(stored), len(computed)) {
		had, want := "nothing", "nothing"
		if i < len(stored) {
			had = stored[i]
		}
		if i < len(computed) {
			want = computed[i]
		}
		if had != want {
			c.fail("program", "program has %q where its decisions give %q", had, want)
			return
		}
	}
	c.fail("program", "program differs from what its decisions give")
}

// capacity checks rule P027, for processors whose SoC states an address space or a number of graphs.
func (c *checker) capacity() {
	if c.onSoC == nil {
		return
	}
	for i := range c.plan.Procs {
		proc := &c.plan.Procs[i]
		described := c.onSoC.Processor(proc.Name)
		load := Load(c.plan, described)
		if described.AddressBytes > 0 && load.Bytes > described.AddressBytes {
			c.fail(fmt.Sprintf("procs[%d]", i),
				"processor %q loads %d bytes of weights and buffers, and addresses at most %d", proc.Name, load.Bytes,
				described.AddressBytes)
		}
		if described.MaxGraphs > 0 && load.Graphs > described.MaxGraphs {
			c.fail(fmt.Sprintf("procs[%d]", i), "processor %q loads %d graphs, and holds at most %d", proc.Name,
				load.Graphs, described.MaxGraphs)
		}
	}
}

// memory checks rule P028. It recomputes what follows from the program alone; the rest was measured, and may be
// measured again.
func (c *checker) memory() {
	have := c.plan.Memory
	if have == nil {
		return
	}
	want := planir.MemoryOf(c.plan)
	for _, part := range []struct {
		name       string
		have, want int64
	}{
		{"weights_bytes", have.Weights, want.Weights},
		{"prefill_weights_bytes", have.PrefillWeights, want.PrefillWeights},
		{"decode_weights_bytes", have.DecodeWeights, want.DecodeWeights},
		{"cache_bytes", have.Cache, want.Cache},
		{"pool_bytes", have.Pool, want.Pool},
		{"hot_bytes", have.Hot, want.Hot},
	} {
		if part.have != part.want {
			c.fail("memory."+part.name, "plan says %d, and its program gives %d", part.have, part.want)
		}
	}
	if sum := have.Sum(); sum != have.Total {
		c.fail("memory.total_bytes", "plan says %d, and the parts add up to %d", have.Total, sum)
	}
	if have.Max > 0 && have.Total > have.Max {
		c.fail("memory.max_bytes", "plan holds %d bytes, and its bound is %d", have.Total, have.Max)
	}
}

// tiers checks rule P029. It compares the capacity tiers with the model's experts.
func (c *checker) tiers() {
	layers := c.ofModel.ExpertLayers()
	isLayer := func(tiers planir.ExpertLayer, layer int) bool { return tiers.Layer == layer }
	for i := range c.plan.Experts {
		tiers := &c.plan.Experts[i]
		if tiers.Experts != c.ofModel.Experts || !slices.EqualFunc(tiers.Layers, layers, isLayer) {
			c.fail(fmt.Sprintf("experts[%d].layers", i),
				"tiers for %d experts in %d layers, and model %q has %d in layers %v",
				tiers.Experts, len(tiers.Layers), c.ofModel.Name, c.ofModel.Experts, layers)
		}
	}
}

// Loaded is what a plan has one processor hold at once.
type Loaded struct {
	Bytes  int64 // weights of all layers, and the buffers its steps touch
	Graphs int
}

// Load computes what a plan has a processor hold. Where its graphs own their weights, every graph counts its own.
func Load(plan *planir.Plan, proc *socs.Processor) Loaded {
	program := &plan.Program
	use := usesOf(program, proc)
	var out Loaded
	for i := range program.Graphs {
		if program.Graphs[i].Proc == proc.Name {
			out.Graphs++
		}
	}

	layers := map[string]int64{} // of each weight: every layer holds its own copy of a pack
	for _, weight := range program.Weights {
		layers[weight.Name] = int64(max(1, weight.LayerCount()))
	}
	for owner, list := range use.columns {
		pack := use.packs[owner]
		out.Bytes += layers[pack.Weight] * (pack.Bytes * united(list) / int64(pack.N1-pack.N0))
	}
	for _, buffer := range program.Buffers {
		if use.buffers[buffer.Name] {
			out.Bytes += int64(buffer.Rows) * int64(buffer.Cols) * int64(buffer.Type.Bytes())
		}
	}
	return out
}

// columns is a range of a pack's columns.
type columns struct{ from, to int }

// processorUse is what the steps of a processor read and write. An owner of weights is a pack, or a pack in one graph
// where graphs do not share weights.
type processorUse struct {
	columns map[string][]columns    // that are read, by owner
	packs   map[string]*planir.Pack // by owner
	buffers map[string]bool
}

// usesOf goes through the steps of a processor.
func usesOf(program *planir.Program, proc *socs.Processor) processorUse {
	packs := map[string]*planir.Pack{}
	for i := range program.Packs {
		packs[program.Packs[i].Name] = &program.Packs[i]
	}
	use := processorUse{columns: map[string][]columns{}, packs: map[string]*planir.Pack{}, buffers: map[string]bool{}}
	seen := map[string]bool{}
	for _, step := range stepsOn(program, proc.Name) {
		for _, view := range slices.Concat(step.In, step.Out) {
			use.buffers[view.Buffer] = true
		}
		for _, ref := range step.W {
			owner := ref.Pack
			if proc.WeightBytes == socs.WeightsPerGraph {
				owner = step.Run + "\x00" + ref.Pack
			}
			if id := owner + "\x00" + ref.String(); !seen[id] {
				seen[id] = true
				use.columns[owner] = append(use.columns[owner], columns{ref.C0, ref.C1})
				use.packs[owner] = packs[ref.Pack]
			}
		}
	}
	return use
}

// stepsOn lists the steps of a processor in all programs.
func stepsOn(program *planir.Program, proc string) (steps []*planir.Step) {
	for _, phase := range program.All() {
		for i := range phase.Sections {
			for j := range phase.Sections[i].Lanes {
				lane := &phase.Sections[i].Lanes[j]
				if lane.Proc != proc {
					continue
				}
				for k := range lane.Steps {
					steps = append(steps, &lane.Steps[k])
				}
			}
		}
	}
	return steps
}

// united returns how many columns ranges have together: steps may read overlapping ranges of one pack.
func united(list []columns) (count int64) {
	slices.SortFunc(list, func(a, b columns) int { return a.from - b.from })
	end := 0
	for _, next := range list {
		if next.to > end {
			count += int64(next.to - max(next.from, end))
			end = next.to
		}
	}
	return count
}
