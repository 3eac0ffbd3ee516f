package planir

import (
	"fmt"
	"strings"

	"github.com/hetc/hetc/planir/op"
)

// Shadow says in which layers products keep their shadow outliers (op.Scheme.Shadow), where they do not in all. In the
// others what exceeds the static scale is clipped, and the scale is that of clipping: no node computes the outliers.
type Shadow struct {
	Node   string          `json:"node" yaml:"node"`                              // "layers.ffn_down"
	Layers []op.LayerRange `json:"layers,omitempty" yaml:"layers,omitempty,flow"` // ascending; empty: in none
}

// Pruned reports whether the products of a node have no shadow outliers in a layer, though their scheme has.
func (p *Plan) Pruned(node string, layer int) bool {
	for i := range p.Shadows {
		if p.Shadows[i].Node == node {
			return !p.Shadows[i].In(layer)
		}
	}
	return false
}

// In reports whether the products keep their shadow outliers in a layer.
func (s *Shadow) In(layer int) bool {
	for _, kept := range s.Layers {
		if layer >= kept.From && layer < kept.To {
			return true
		}
	}
	return false
}

// LayersText says where the products keep their shadow outliers: "in layers 0:2, 5:6", "in no layer".
func (s *Shadow) LayersText() string {
	if len(s.Layers) == 0 {
		return "in no layer"
	}
	var ranges []string
	for _, kept := range s.Layers {
		ranges = append(ranges, kept.String())
	}
	return "in layers " + strings.Join(ranges, ", ")
}

// Outliers is how many channels of what enters the products of a node a step multiplies at once beyond the static
// scale, in a program of that many rows. The calibration counted them. Without an entry it is op.OutlierChannels.
type Outliers struct {
	Node     string `json:"node" yaml:"node"`
	Rows     int    `json:"rows" yaml:"rows"`
	Channels int    `json:"channels" yaml:"channels"`
}

// Channels returns how many channels are multiplied at once beside the products of a node with that many rows, 0 where
// the plan says nothing.
func (p *Plan) Channels(node string, rows int) int {
	for _, entry := range p.Outliers {
		if entry.Node == node && entry.Rows == rows {
			return entry.Channels
		}
	}
	return 0
}

// maxTokensOfCall bounds the rows of an entry of Outliers, far above any program.
const maxTokensOfCall = 1 << 24

// outlierSizes checks the numbers of each entry of Outliers.
func (c *checker) outlierSizes() {
	for i, entry := range c.plan.Outliers {
		if entry.Rows < 1 || entry.Rows > maxTokensOfCall || entry.Channels < 1 {
			c.fail(fmt.Sprintf("outliers[%d]", i), "%d channels at %d rows, want 1 and more at 1..%d", entry.Channels,
				entry.Rows, maxTokensOfCall)
		}
	}
}

// ShadowIn returns the form of a set of layers, of which kept tells the members, from 0 to the last one.
func ShadowIn(node string, layers int, kept func(layer int) bool) Shadow {
	shadow := Shadow{Node: node}
	for layer := range layers {
		if !kept(layer) {
			continue
		}
		if last := len(shadow.Layers) - 1; last >= 0 && shadow.Layers[last].To == layer {
			shadow.Layers[last].To++
		} else {
			shadow.Layers = append(shadow.Layers, op.LayerRange{From: layer, To: layer + 1})
		}
	}
	return shadow
}

// shadowSizes checks the layers of each entry of Shadows.
func (c *checker) shadowSizes() {
	for i := range c.plan.Shadows {
		after := 0
		for _, kept := range c.plan.Shadows[i].Layers {
			if kept.From < after || kept.To <= kept.From || kept.To > maxLayers {
				c.fail(fmt.Sprintf("shadows[%d].layers", i), "layers %v, want ascending ranges up to %d",
					c.plan.Shadows[i].Layers, maxLayers)
				break
			}
			after = kept.To + 1
		}
	}
}
