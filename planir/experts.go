package planir

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// What happens to rows that are sent to an expert beyond the rows that are reserved for it.
const (
	OverflowExact = "exact" // the dynamic products compute them, with the experts that have no slot
	OverflowDrop  = "drop"  // the least salient by a rule are dropped: they add nothing to their token
)

// ExpertTiers are capacity tiers of experts (NPUMoE sec. 4) in the program of one number of rows. An expert in a slot
// has rows reserved for it; slots of a group have equally many, and one static graph computes all of them. Groups are
// the same in every layer, so that layers share the shapes of graphs; which expert sits in which slot is each layer's
// own. Experts in no slot are multiplied by the dynamic products of the model, which take any number of rows.
type ExpertTiers struct {
	Rows     int    `json:"rows" yaml:"rows"`         // of the program
	Loads    string `json:"loads" yaml:"loads"`       // what was expected: "traced", "synthetic zipf:1.2"
	Experts  int    `json:"experts" yaml:"experts"`   // of a layer
	Overflow string `json:"overflow" yaml:"overflow"` // exact, drop
	// Salience is the rule by which rows are dropped, of op.Saliences; empty: none are.
	Salience string `json:"salience,omitempty" yaml:"salience,omitempty"`
	// Sent is how many rows of a layer the dynamic products are expected to compute, at least 1; 0: there are none,
	// because every expert has a slot and overflow is dropped.
	Sent   int           `json:"sent" yaml:"sent"`
	Groups []ExpertGroup `json:"groups" yaml:"groups"` // their slots follow one another in this order
	Layers []ExpertLayer `json:"layers" yaml:"layers"` // all that have experts, ascending

	ExpectNS int64  `json:"expect_ns" yaml:"expect_ns"` // of the experts of all layers
	BoundNS  int64  `json:"bound_ns" yaml:"bound_ns"`   // no choice takes less
	Status   string `json:"status" yaml:"status"`       // optimal, feasible
}

// ExpertGroup is a static graph: so many slots of so many rows each.
type ExpertGroup struct {
	Slots    int   `json:"slots" yaml:"slots"`
	Rows     int   `json:"rows" yaml:"rows"`
	ExpectNS int64 `json:"expect_ns,omitempty" yaml:"expect_ns,omitempty"` // of one launch
}

// ExpertLayer says which expert sits in which slot, and what is expected of a full call: shares of the rows that are
// routed, Rows times the experts of a token.
type ExpertLayer struct {
	Layer    int     `json:"layer" yaml:"layer"`
	Slots    []int   `json:"slots" yaml:"slots,flow"`                        // the expert in each
	Moved    float64 `json:"moved" yaml:"moved"`                             // computed by groups
	Overflow float64 `json:"overflow,omitempty" yaml:"overflow,omitempty"`   // beyond the rows of a slot
	ExpectNS int64   `json:"expect_ns,omitempty" yaml:"expect_ns,omitempty"` // of the layer's experts
}

// Shape returns the groups as operators state them.
func (t *ExpertTiers) Shape() op.Groups {
	groups := make([]op.Group, len(t.Groups))
	for i, group := range t.Groups {
		groups[i] = op.Group{Slots: group.Slots, Rows: group.Rows}
	}
	return op.GroupsOf(groups)
}

// Slots returns the number of slots of a layer.
func (t *ExpertTiers) Slots() (count int) {
	for _, group := range t.Groups {
		count += group.Slots
	}
	return count
}

// Layer returns the tiers of a layer, nil if the layer has no experts.
func (t *ExpertTiers) Layer(layer int) *ExpertLayer {
	at, found := slices.BinarySearchFunc(t.Layers, layer, func(l ExpertLayer, want int) int { return l.Layer - want })
	if !found {
		return nil
	}
	return &t.Layers[at]
}

// TiersOf returns the capacity tiers of the program of that many rows, nil where its experts are all dynamic.
func (p *Plan) TiersOf(rows int) *ExpertTiers {
	for i := range p.Experts {
		if p.Experts[i].Rows == rows {
			return &p.Experts[i]
		}
	}
	return nil
}

// Slotted returns the experts of a layer that have a slot in some program, ascending.
func (p *Plan) Slotted(layer int) []int { return slotted(p.Experts, layer) }

// slotted does the work of Slotted for a list of tiers.
func slotted(list []ExpertTiers, layer int) (out []int) {
	for i := range list {
		if known := list[i].Layer(layer); known != nil {
			out = append(out, known.Slots...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// MostSlotted returns how many experts a layer has at most that have a slot in some program with tiers.
func MostSlotted(list []ExpertTiers) (most int) {
	for i := range list {
		for _, layer := range list[i].Layers {
			most = max(most, len(slotted(list, layer.Layer)))
		}
	}
	return most
}

// Holds returns the experts that a pack holds in a layer, in order: those that have a slot, or all.
func (p *Plan) Holds(packed *Pack, layer int) []int {
	if packed.Slotted {
		return p.Slotted(layer)
	}
	all := make([]int, packed.Experts)
	for expert := range all {
		all[expert] = expert
	}
	return all
}

// InSlot returns the expert that a reference to a slot means in a layer.
func (p *Plan) InSlot(ref WeightRef, layer int) int {
	return p.TiersOf(ref.Tiers).Layer(layer).Slots[ref.Slot]
}

// experts checks rule P018. Whether the layers and experts are the model's is planir/check's question.
func (c *checker) experts() {
	for i := range c.plan.Experts {
		tiers, at := &c.plan.Experts[i], fmt.Sprintf("experts[%d]", i)
		if tiers.Rows < 2 || i > 0 && c.plan.Experts[i-1].Rows >= tiers.Rows || c.plan.Decodes(tiers.Rows) {
			c.fail(at+".rows", "tiers are for %d rows, want ascending numbers of prompts of at least 2", tiers.Rows)
		}
		c.expertTiers(at, tiers)
	}
}

// expertTiers checks the tiers of one program.
func (c *checker) expertTiers(at string, tiers *ExpertTiers) {
	if tiers.Experts < 1 || tiers.Experts > maxExperts {
		c.fail(at+".experts", "%d experts, want 1..%d", tiers.Experts, maxExperts)
		return
	}
	if err := tiers.Shape().Validate(); err != nil || len(tiers.Groups) == 0 {
		c.fail(at+".groups", "groups %v: want at least one: %v", tiers.Groups, err)
		return
	}
	c.expertOverflow(at, tiers)
	if tiers.ExpectNS < 0 || tiers.ExpectNS > maxBytes || tiers.BoundNS < 0 || tiers.BoundNS > tiers.ExpectNS ||
		tiers.Status != "optimal" && tiers.Status != "feasible" {
		c.fail(at, "status is %q with %d ns and a bound of %d ns, want optimal or feasible and a bound of at most the time",
			tiers.Status, tiers.ExpectNS, tiers.BoundNS)
	}
	if len(tiers.Layers) < 1 || len(tiers.Layers) > maxLayers {
		c.fail(at+".layers", "%d layers, want 1..%d", len(tiers.Layers), maxLayers)
	}
	for i := range tiers.Layers {
		layer, path := &tiers.Layers[i], fmt.Sprintf("%s.layers[%d]", at, i)
		if layer.Layer < 0 || layer.Layer >= maxLayers || i > 0 && tiers.Layers[i-1].Layer >= layer.Layer {
			c.fail(path+".layer", "layer %d, want ascending numbers", layer.Layer)
		}
		c.expertLayer(path, layer, tiers.Slots(), tiers.Experts)
	}
}

// expertOverflow checks what becomes of rows beyond the slots.
func (c *checker) expertOverflow(at string, tiers *ExpertTiers) {
	drop := tiers.Overflow == OverflowDrop
	if !drop && tiers.Overflow != OverflowExact {
		c.fail(at+".overflow", "overflow is %q, want exact or drop", tiers.Overflow)
	}
	if drop != slices.Contains(op.Saliences, tiers.Salience) || !drop && tiers.Salience != "" {
		c.fail(at+".salience", "salience is %q and overflow %q, want one of %v with drop, else none", tiers.Salience,
			tiers.Overflow, op.Saliences)
	}
	if tiers.Sent < 0 || tiers.Sent == 0 && (!drop || tiers.Slots() < tiers.Experts) {
		c.fail(at+".sent", "%d rows are computed by dynamic products, want at least 1 where experts have no slot or "+
			"overflow is exact", tiers.Sent)
	}
}

// expertLayer checks that a layer has an expert in each slot, none of them twice, and shares that are such.
func (c *checker) expertLayer(path string, layer *ExpertLayer, slots, experts int) {
	for _, share := range []float64{layer.Moved, layer.Overflow} {
		if !(share >= 0 && share <= 1) {
			c.fail(path, "a share is %v, want 0..1", share)
		}
	}
	if len(layer.Slots) != slots {
		c.fail(path+".slots", "%d slots, and the groups have %d", len(layer.Slots), slots)
	}
	seen := make([]bool, experts)
	for _, expert := range layer.Slots {
		if expert < 0 || expert >= experts || seen[expert] {
			c.fail(path+".slots", "expert %d of %d does not exist or has a slot already", expert, experts)
			continue
		}
		seen[expert] = true
	}
}
