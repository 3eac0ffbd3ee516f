package planir

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
)

// Names and sizes: every value is in range by itself. A plan may come from anywhere, and later rules allocate and loop
// by these sizes.

// Limits of a plan: far above any real one, low enough that checking stays cheap.
const (
	maxSteps   = 4096 // of one section
	maxItems   = 1 << 16
	maxName    = 200 // bytes
	maxProcs   = 64
	maxCore    = 4095
	maxContext = 1 << 22
	maxBatch   = 256
	maxLayers  = 4096
	maxExperts = 4096
	maxCache   = 1 << 50 // elements
	maxBytes   = 1 << 60
	maxNS      = 1 << 56 // of a predicted time: two years
)

// names checks rule P001: the header, every list of names, and every size by itself.
func (c *checker) names() {
	c.headerSizes()
	plan, program := c.plan, &c.plan.Program
	c.unique("procs", len(plan.Procs), true, func(i int) string { return plan.Procs[i].Name })
	c.procSizes()
	c.unique("folds", len(plan.Folds), true, func(i int) string { return plan.Folds[i] })
	c.unique("shadows", len(plan.Shadows), true, func(i int) string { return plan.Shadows[i].Node })
	c.shadowSizes()
	c.unique("outliers", len(plan.Outliers), true, func(i int) string {
		return fmt.Sprintf("%s@%08d", plan.Outliers[i].Node, plan.Outliers[i].Rows)
	})
	c.outlierSizes()
	c.unique("hot", len(plan.Hot), true, func(i int) string {
		return fmt.Sprintf("%s@%08d", plan.Hot[i].Weight, plan.Hot[i].Layer)
	})
	c.hotSizes()
	c.unique("program.buffers", len(program.Buffers), false, func(i int) string { return program.Buffers[i].Name })
	c.unique("program.weights", len(program.Weights), false, func(i int) string { return program.Weights[i].Name })
	c.unique("program.packs", len(program.Packs), false, func(i int) string { return program.Packs[i].Name })
	c.unique("program.graphs", len(program.Graphs), false, func(i int) string { return program.Graphs[i].Name })
	var names []string
	for _, phase := range program.All() {
		names = append(names, phase.Name)
	}
	c.unique("program.programs", len(names), false, func(i int) string { return names[i] })
	c.unique("decisions", len(plan.Decisions), false, func(i int) string {
		return fmt.Sprintf("%s@%d", plan.Decisions[i].Node, plan.Decisions[i].Rows)
	})
	for i := range plan.Decisions {
		decision := &plan.Decisions[i]
		switch decision.Strategy {
		case Single, WeightCentric, ActivationDivide, Hybrid, Padding, Pipe, Paired:
		default:
			c.fail(fmt.Sprintf("decisions[%d].strategy", i), "unknown strategy %q of %s at %d rows",
				decision.Strategy, decision.Node, decision.Rows)
		}
		c.source(fmt.Sprintf("decisions[%d].source", i), decision.Source)
		for j := range decision.Alternatives {
			c.source(fmt.Sprintf("decisions[%d].alternatives[%d].source", i, j), decision.Alternatives[j].Source)
		}
	}
	c.predictedTimes()
	c.qualitySizes()
	if memory := plan.Memory; memory != nil {
		for _, bytes := range memory.sizes() {
			if bytes < 0 || bytes > maxBytes {
				c.fail("memory", "%d bytes, want 0..2^60", bytes)
			}
		}
	}
	c.programSizes()
}

// predictedTimes checks the predicted times that the runtime adds to its clock.
func (c *checker) predictedTimes() {
	for i := range c.plan.Predictions {
		prediction := &c.plan.Predictions[i]
		times := []int64{prediction.PlanNS}
		for _, single := range prediction.Singles {
			times = append(times, single.NS)
		}
		for _, section := range prediction.Sections {
			times = append(times, section.NS)
		}
		if least, most := slices.Min(times), slices.Max(times); least < 0 || most > maxNS {
			c.fail(fmt.Sprintf("predictions[%d]", i), "program %q takes %d to %d ns, want 0..2^56", prediction.Program, least,
				most)
		}
	}
}

// source checks what a predicted time is said to rest on.
func (c *checker) source(path string, from source.Source) {
	if from != "" && !from.Valid() {
		c.fail(path, "unknown source %q, want %s", from, diag.OneOf(source.All))
	}
}

// headerSizes checks what the plan states of itself and of its cache.
func (c *checker) headerSizes() {
	plan := c.plan
	if plan.Schema != Schema {
		c.fail("schema", "schema is %q, want %q", plan.Schema, Schema)
	}
	if plan.MaxContext < 1 || plan.MaxContext > maxContext {
		c.fail("max_context", "context is %d, want 1..%d", plan.MaxContext, maxContext)
	}
	for i, batch := range plan.Batches {
		if batch < 2 || batch > maxBatch || i > 0 && plan.Batches[i-1] >= batch {
			c.fail(fmt.Sprintf("batches[%d]", i), "batches %v, want ascending numbers of 2..%d sequences",
				plan.Batches, maxBatch)
		}
	}
	if !slices.Contains(op.CacheTypes, plan.KV) {
		c.fail("kv", "cache type is %q, want %s", plan.KV, diag.OneOf(op.CacheTypes))
	}
	if !plan.Program.Cache.inRange() {
		c.fail("program.cache", "the cache %+v is out of range", plan.Program.Cache)
	}
	if len(plan.Procs) > maxProcs {
		c.fail("procs", "%d processors, want at most %d", len(plan.Procs), maxProcs)
	}
}

// inRange reports whether every size of the cache is in range, and the whole cache at the largest batch.
func (c Cache) inRange() bool {
	// In floats, because the product of sizes that are only bounded one by one may overflow an int.
	elements := float64(c.Layers) * float64(c.KVHeads) * float64(c.HeadDim) * float64(c.MaxContext) * maxBatch
	return c.Layers >= 0 && c.Layers <= maxLayers && c.KVHeads >= 0 && c.HeadDim >= 0 &&
		c.Sequences >= 0 && c.Sequences <= maxBatch && c.MaxContext <= maxContext && elements <= maxCache
}

// unique checks a list of names: well formed, each there once, and ascending where the list is ordered.
func (c *checker) unique(path string, count int, ordered bool, name func(int) string) {
	if count > maxItems {
		c.fail(path, "%d entries, want at most %d", count, maxItems)
		return
	}
	seen := make(map[string]bool, count)
	for i := range count {
		this := name(i)
		wrong := func(format string, args ...any) { c.fail(fmt.Sprintf("%s[%d]", path, i), format, args...) }
		switch {
		case this == "" || len(this) > maxName:
			wrong("name is empty or longer than 200 bytes")
		case strings.ContainsFunc(this, func(r rune) bool { return r <= ' ' || r > '~' }):
			wrong("name %q has other than printable ASCII characters", this)
		case seen[this]:
			wrong("name %q appears twice", this)
		case ordered && i > 0 && name(i-1) > this:
			wrong("%q follows %q, want ascending order", this, name(i-1))
		}
		seen[this] = true
	}
}

// procSizes checks cores, memory and way of waiting of each processor.
func (c *checker) procSizes() {
	for i := range c.plan.Procs {
		for _, core := range c.plan.Procs[i].Cores {
			if core < 0 || core > maxCore {
				c.fail(fmt.Sprintf("procs[%d].cores", i), "core %d, want 0..%d", core, maxCore)
			}
		}
		if wait := c.plan.Procs[i].Wait; !slices.Contains(capability.Waitings, wait) {
			c.fail(fmt.Sprintf("procs[%d].wait", i), "%q, want %s, or nothing", wait, diag.OneOf(capability.Waitings))
		}
		if memory := c.plan.Procs[i].Memory; memory != nil {
			if err := memory.Validate(); err != nil {
				c.fail(fmt.Sprintf("procs[%d].memory", i), "%v", err)
			}
		}
	}
}

// qualitySizes checks the phases and the divergences, which are numbers.
func (c *checker) qualitySizes() {
	within := func(divergence float64) bool { return divergence >= 0 && divergence <= math.MaxFloat32 } // and a number
	for i, quality := range c.plan.Quality {
		known := quality.Phase == "prefill" || quality.Phase == "decode"
		if !known || i > 0 && c.plan.Quality[i-1].Phase >= quality.Phase {
			c.fail(fmt.Sprintf("quality[%d].phase", i), "phase %q, want decode, then prefill", quality.Phase)
		}
		if !within(quality.KL) || !within(quality.MaxKL) {
			c.fail(fmt.Sprintf("quality[%d]", i), "mean KL %v of at most %v, want numbers of at least 0", quality.KL,
				quality.MaxKL)
		}
	}
}

// programSizes checks the programs and their sections.
func (c *checker) programSizes() {
	for i, program := range c.plan.Program.All() {
		path := c.plan.Program.path(i)
		if program.Rows < 1 || program.Phase != "prefill" && program.Phase != "decode" {
			c.fail(path,
				"phase %q with %d rows, want prefill or decode with at least 1",
				program.Phase, program.Rows)
		}
		c.unique(path+".sections", len(program.Sections), false, func(j int) string {
			return fmt.Sprintf("%s@%d", program.Sections[j].Name, program.Sections[j].First)
		})
	}
	for section := range c.plan.Program.sections() {
		c.sectionSizes(section)
	}
}

// sectionSizes checks the lanes, steps, layers and flags of a section.
func (c *checker) sectionSizes(section sectionAt) {
	c.unique(section.path()+".lanes", len(section.Lanes), true, func(k int) string { return section.Lanes[k].Proc })
	steps := 0
	for i := range section.Lanes {
		steps += len(section.Lanes[i].Steps)
		for j := range section.Lanes[i].Steps {
			if behind := section.Lanes[i].Steps[j].Behind; behind < 0 || behind > maxBehind {
				c.fail(section.path(), "a step is %d layers behind, want 0..%d", behind, maxBehind)
			}
		}
	}
	// A section of no layers runs once, and states no first layer.
	layers := section.Layers >= 0 && section.Layers <= maxLayers &&
		section.First >= 0 && section.First <= maxLayers-section.Layers &&
		(section.Layers > 0 || section.First == 0)
	flags := section.Flags >= 0 && section.Flags <= steps
	if len(section.Lanes) > maxProcs || steps > maxSteps || !layers || !flags {
		c.fail(section.path(), "%d lanes, %d steps, %d layers, %d flags: out of range",
			len(section.Lanes), steps, section.Layers, section.Flags)
	}
}
