package lower

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
)

// Names of the nodes and weights that a model does not have and Expand adds. All of them follow from the name of a node
// of the model.

// Suffixes of the nodes behind a product with shadow outliers.
const (
	outliersSuffix = "_outliers"
	mergeSuffix    = "_merge"
)

// ShadowOf returns the product whose shadow outliers a node computes or adds, by name; false for other nodes.
func ShadowOf(node string) (product string, ok bool) {
	for _, suffix := range []string{outliersSuffix, mergeSuffix} {
		if product, ok = strings.CutSuffix(node, suffix); ok {
			return product, true
		}
	}
	return "", false
}

// scaleCounts are the numbers of static scales that schemes have.
var scaleCounts = []int{1, 2, 4}

// scalesSuffix tells apart what depends on the number of static scales.
func scalesSuffix(scales int) string {
	if scales == 1 {
		return ""
	}
	return strconv.Itoa(scales)
}

// ScaleWeight returns the name of the weight f32 [1,scales] that holds the static scales of what enters the products of
// a class, named as decisions name nodes.
func ScaleWeight(class string, scales int) string { return class + ".scale" + scalesSuffix(scales) }

// InnerScaleWeight returns the name of the weight f32 [1,1] that holds the static scale of what enters the products of
// a class with shadow outliers: of all channels but the largest.
func InnerScaleWeight(class string) string { return class + ".inner_scale" }

// Computed returns the weights that a class of products may have and no model has: its static scales and its steps.
func Computed(class string) []string {
	var out []string
	for _, scales := range scaleCounts {
		out = append(out, ScaleWeight(class, scales))
	}
	return append(out, InnerScaleWeight(class), StepsWeight(class))
}

// Added returns the nodes that Expand may add for a node of a kind, by name, with the kind of operator that each is.
func Added(node string, kind op.Kind) map[string]op.Kind {
	out := map[string]op.Kind{node + outliersSuffix: op.OutlierMatMul, node + mergeSuffix: op.Add}
	addGroups(out, node, kind)
	for _, product := range append(slices.Collect(maps.Keys(out)), node) {
		for i := range quantForms {
			out[product+quantForms[i].node] = op.QuantRows
		}
	}
	maps.Copy(out, models.SparseNodes(node))
	return out
}

// StepsWeight returns the name of the weight f32 [2,N] that holds the steps of a product on a grid (op.Scheme.Grid): of
// what enters it and of what it computes.
func StepsWeight(class string) string { return class + ".steps" }

// dispatchSuffix follows the name of the first product in the name of the node that moves rows to the slots.
const dispatchSuffix = "_dispatch"

// groupSuffix returns the suffix of the nodes and values of a group.
func groupSuffix(group int) string { return groupMark + strconv.Itoa(group) }

// groupMark stands before the number of a group.
const groupMark = "_g"

// ClassOf returns the model's node that a node of a group computes rows of; any other node is its own.
func ClassOf(node string) string {
	if at := strings.LastIndex(node, groupMark); at >= 0 {
		if _, err := strconv.Atoi(node[at+len(groupMark):]); err == nil {
			return node[:at]
		}
	}
	return node
}

// SlotsWeight returns the name of the weight f32 [1,slots] that says which expert is in which slot of a layer, in the
// program of that many rows.
func SlotsWeight(rows int) string { return fmt.Sprintf("expert_slots@%d", rows) }
