package planir

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// Hot lists the rows of a weight that shadow outliers (op.OutlierMatMul) need most often in a layer. A process holds a
// copy of them in memory; every other row is read from the mapped bundle when its channel exceeds the scale.
//
// RATIONALE: Which rows of a weight do shadow outliers find in memory?
type Hot struct {
	Weight string `json:"weight" yaml:"weight"`
	Layer  int    `json:"layer" yaml:"layer"` // 0 for a weight that belongs to no layer
	// rows of the weight, ascending
	Channels []int `json:"channels" yaml:"channels,flow"`
	// Others is how many other channels exceeded the scale in some call of the calibration: rows that are expected to
	// be read from the file.
	Others int `json:"others,omitempty" yaml:"others,omitempty"`
}

// HotRows returns the plan's entry for a weight in a layer (-1: of no layer), nil if there is none.
func (p *Plan) HotRows(weight string, layer int) *Hot {
	for i := range p.Hot {
		if hot := &p.Hot[i]; hot.Weight == weight && hot.Layer == max(0, layer) {
			return hot
		}
	}
	return nil
}

// Within returns the channels that a pack holds, counted from its first row. The pack may be a part of the weight's
// rows.
func (h *Hot) Within(pack *Pack) (rows []int) {
	for _, channel := range h.Channels {
		if channel >= pack.K0 && channel < pack.K1 {
			rows = append(rows, channel-pack.K0)
		}
	}
	return rows
}

// hotSum counts the hot rows of a weight.
type hotSum struct {
	weight       string
	rows, layers int
}

// hotByWeight adds up the hot rows of each weight, in the order of the plan.
func (p *Plan) hotByWeight() (out []hotSum) {
	for i := range p.Hot {
		hot := &p.Hot[i]
		if last := len(out) - 1; last < 0 || out[last].weight != hot.Weight {
			out = append(out, hotSum{weight: hot.Weight})
		}
		out[len(out)-1].rows += len(hot.Channels)
		out[len(out)-1].layers++
	}
	return out
}

// ReadByRow returns the packs of which steps read single rows only: those that multiply what static scales cut off.
func (p *Program) ReadByRow() map[string]bool {
	graphs := map[string]*op.Graph{}
	for i := range p.Graphs {
		graphs[p.Graphs[i].Name] = &p.Graphs[i].Graph
	}
	out, whole := map[string]bool{}, map[string]bool{}
	for step := range p.steps() {
		for i, ref := range step.W {
			if graphs[step.Run].ReadsRows(i) {
				out[ref.Pack] = true
			} else {
				whole[ref.Pack] = true
			}
		}
	}
	for name := range whole {
		delete(out, name)
	}
	return out
}

// hotSizes checks the numbers of each entry of Hot.
func (c *checker) hotSizes() {
	for i := range c.plan.Hot {
		hot := &c.plan.Hot[i]
		path := fmt.Sprintf("hot[%d]", i)
		if hot.Layer < 0 || hot.Layer >= maxLayers || hot.Others < 0 || hot.Others > maxItems {
			c.fail(path, "layer %d with %d other channels, want a layer of 0..%d and 0..%d channels", hot.Layer, hot.Others,
				maxLayers-1, maxItems)
		}
		last, ascending := -1, true
		for _, channel := range hot.Channels {
			ascending, last = ascending && channel > last, channel
		}
		if len(hot.Channels) == 0 || len(hot.Channels) > maxItems || !ascending {
			c.fail(path+".channels", "%d channels, want 1 to %d of them, ascending from 0", len(hot.Channels), maxItems)
		}
	}
}

// hotReferences checks that the weight of each entry of Hot exists, in that layer, and has such rows.
func (c *checker) hotReferences() {
	for i := range c.plan.Hot {
		hot := &c.plan.Hot[i]
		path := fmt.Sprintf("hot[%d]", i)
		weight := c.weightOf[hot.Weight]
		switch {
		case weight == nil:
			c.fail(path, "unknown weight %q", hot.Weight)
		case len(weight.Layers) == 0 && hot.Layer != 0 || len(weight.Layers) > 0 && !weight.InLayer(hot.Layer):
			c.fail(path, "weight %q has no layer %d", hot.Weight, hot.Layer)
		case !slices.ContainsFunc(c.plan.Program.Packs, func(pack Pack) bool {
			return pack.Weight == hot.Weight && pack.Layout == op.RowsLayout
		}):
			c.fail(path, "weight %q has no pack of rows, which shadow outliers are multiplied by", hot.Weight)
		case hot.Channels[len(hot.Channels)-1] >= weight.K:
			c.fail(path+".channels", "channel %d of weight %q, which has %d", hot.Channels[len(hot.Channels)-1], hot.Weight,
				weight.K)
		}
	}
}
