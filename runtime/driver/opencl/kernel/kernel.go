// Package kernel knows the kernels of the driver "opencl": their sources, the variants in which each is written, what
// a variant needs of a device, and the form in which an artifact carries them.
//
// A family is kernels that are built into one program: those on rows, those on heads, a product of one scheme. The
// variants of a family have the same functions with the same arguments, and differ in how they divide the work and in
// the instructions that they use. Which one a device runs is a row of a table and what the device says about itself:
// an artifact names one, or carries several, of which the driver takes the first that suits the device.
package kernel

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

//go:embed *.cl
var files embed.FS

// Option is the prefix of options that name the variant of a family.
const Option = "variant."

// Version is that of the arguments of all kernels. The driver refuses artifacts of another one.
const Version = 1

// Features is what a device says about itself.
type Features struct {
	// Dedicated reports local memory of its own: groups that meet at barriers are cheap. Where it is a part of the
	// global memory, as on CPUs, each item does best alone.
	Dedicated  bool
	MaxGroup   int // items of a group
	IntegerDot bool
	ImageWords int  // the longest image over a buffer, in texels; 0: no images
	SubGroups  bool // of OpenCL 3.0: items of a group that reduce without memory
}

// need is something a variant cannot do without, with the reason for a device that lacks it.
type need struct {
	name string
	has  func(f *Features) bool
}

var (
	needGroup = need{fmt.Sprintf("groups of %d items", GroupItems),
		func(f *Features) bool { return f.MaxGroup >= GroupItems }}
	needSlices = need{fmt.Sprintf("groups of %d items", 32*columnSlices),
		func(f *Features) bool { return f.MaxGroup >= 32*columnSlices }}
	needSubGroups = need{"subgroups of OpenCL 3.0", func(f *Features) bool { return f.SubGroups }}
	needImages    = need{fmt.Sprintf("images over buffers of %d texels", leastImage),
		func(f *Features) bool { return f.ImageWords >= leastImage }}
	needDot = need{"cl_khr_integer_dot_product", func(f *Features) bool { return f.IntegerDot }}
)

// Sizes of groups: the items that reduce a row, and the slices of the reduction of a product with few rows.
const (
	GroupItems   = 64
	columnSlices = 8
	leastImage   = 1 << 16 // what every device with images has
)

// Grid says how a variant divides its work.
type Grid int

const (
	ByRows   Grid = iota // an item for each row
	ByCells              // an item for each element, in groups of GroupItems
	ByGroups             // a group of GroupItems items for each row
	ByHeads              // an item for each head of each row
	// an item for Rows rows of 16 columns; where one item is to compute a whole tile, the next one does nothing
	ByTiles
	ByColumn // a group of 32 x Slices items for Rows rows of 32 columns
)

// Variant is one way to write a family.
type Variant struct {
	Name string
	Grid Grid
	// Rows is how many rows of a product an item computes. Last is the same of the variant that computes the rows that
	// remain, where they are at most Few; 0: rows that remain are a block too.
	Rows, Few int
	Slices    int
	// Items is how many items an attention makes of few rows, by dividing the positions of the cache; 0: one for each
	// head of a row.
	Items int

	// Image reads weights as an image over their buffer, through the cache of textures, of up to ImageWords words.
	Image bool

	needs     []need
	dedicated bool // it suits devices with local memory of their own; the others suit all
	defines   []string
}

// family is a row of the table: kernels that form a program.
type family struct {
	name     string
	file     string
	defines  []string
	variants []Variant
}

// Each family's variants stand in the order in which they are preferred.
var families = slices.Concat([]family{
	{name: "rows", file: "rows.cl", variants: []Variant{
		{Name: "cells", Grid: ByCells, dedicated: true, needs: []need{needGroup}, defines: []string{"CELLS"}},
		{Name: "rows", Grid: ByRows},
	}},
	{name: "norms", file: "norms.cl", variants: []Variant{
		{Name: "subgroups", Grid: ByGroups, dedicated: true, needs: []need{needGroup, needSubGroups},
			defines: []string{fmt.Sprintf("GROUP %d", GroupItems), "SUBGROUPS"}},
		{Name: "groups", Grid: ByGroups, dedicated: true, needs: []need{needGroup},
			defines: []string{fmt.Sprintf("GROUP %d", GroupItems)}},
		{Name: "rows", Grid: ByRows},
	}},
	{name: "heads f32", file: "heads.cl", variants: heads},
	{name: "heads f16", file: "heads.cl", defines: []string{"KV_F16"}, variants: heads},
	{name: "heads q8", file: "heads.cl", defines: []string{"KV_Q8"}, variants: heads},
	{name: "attention f32", file: "attention.cl", variants: attentions},
	{name: "attention f16", file: "attention.cl", defines: []string{"KV_F16"}, variants: attentions},
	{name: "attention q8", file: "attention.cl", defines: []string{"KV_Q8"}, variants: attentions},
	{name: "estimate f32", file: "estimate.cl", variants: estimates},
	{name: "estimate f16", file: "estimate.cl", defines: []string{"KV_F16"}, variants: estimates},
	{name: "estimate q8", file: "estimate.cl", defines: []string{"KV_Q8"}, variants: estimates},
}, products())

var (
	heads      = []Variant{{Name: "heads", Grid: ByHeads}}
	estimates  = []Variant{{Name: "dot", Grid: ByHeads, needs: []need{needDot}, defines: []string{"DOT"}}, heads[0]}
	attentions = []Variant{{Name: "split", Grid: ByHeads, Items: 1024, dedicated: true}, heads[0]}
)

// products are the families of matrix products, one for each pair of activations and weights.
func products() (list []family) {
	for _, product := range []struct {
		schemes []op.Scheme
		defines []string
		rows    int // that a tile of the register file holds
	}{
		{[]op.Scheme{op.A32W32}, []string{"W32"}, 6},
		{[]op.Scheme{op.A32W16}, []string{"W16"}, 6},
		{[]op.Scheme{op.A8TQ8C, op.A8SQ8C, op.A8S2Q8C, op.A8S4Q8C, op.A8OQ8C}, []string{"U8", "Q8C"}, 2},
		{[]op.Scheme{op.A8TQ4B32}, []string{"U8", "Q4 32"}, 2},
		{[]op.Scheme{op.A8TQ4B128}, []string{"U8", "Q4 128"}, 2},
		{[]op.Scheme{op.A16FW16}, []string{"HALF", "W16"}, 6},
		{[]op.Scheme{op.A16FQ8C}, []string{"HALF", "Q8C"}, 6},
		{[]op.Scheme{op.A16FQ4B32}, []string{"HALF", "Q4 32"}, 6},
		{[]op.Scheme{op.A16SQ8C}, []string{"GRID", "Q8C"}, 6},
		{[]op.Scheme{op.A16SQ4C}, []string{"GRID", "Q4C"}, 6},
	} {
		column := Variant{Name: "columns", Grid: ByColumn, Rows: 4, Slices: columnSlices, dedicated: true,
			needs: []need{needSlices}, defines: []string{"COLUMN", fmt.Sprintf("SLICES %d", columnSlices)}}
		tile := Variant{Name: "tiles", Grid: ByTiles, Rows: product.rows, Few: product.rows / 2,
			defines: []string{"TILE"}}
		// Reading through textures pays on some GPUs and costs on others: it is never the first choice.
		image := column
		image.Name, image.Image, image.needs = "columns-image", true, append(slices.Clone(column.needs), needImages)
		image.defines = append(slices.Clone(column.defines), "IMAGE")
		variants := []Variant{column, image, tile}
		if slices.Contains(product.defines, "U8") {
			dot := column
			dot.Name, dot.needs = "columns-dot", append(slices.Clone(dot.needs), needDot)
			dot.defines = append(slices.Clone(dot.defines), "DOT")
			variants = append([]Variant{dot}, variants...)
		}
		for _, scheme := range product.schemes {
			list = append(list, family{name: Product(scheme), file: "matmul.cl", defines: product.defines,
				variants: variants})
			if scheme.Experts() {
				list = append(list, family{name: Experts(scheme), file: "matmul.cl",
					defines: append(slices.Clone(product.defines), "EXPERTS"), variants: single(variants)})
			}
		}
	}
	return list
}

// single are variants that compute one row at a time, as products of experts do: neighbouring rows have different
// weights. An image has no place to begin at, so that none is read through one.
func single(variants []Variant) (list []Variant) {
	for _, variant := range variants {
		if variant.Image {
			continue
		}
		variant.Rows, variant.Few = 1, 0
		list = append(list, variant)
	}
	return list
}

// Experts is the family of products by the experts of a scheme.
func Experts(scheme op.Scheme) string { return "experts " + string(scheme) }

// Product is the family of products of a scheme.
func Product(scheme op.Scheme) string { return "matmul " + string(scheme) }

// find is the row of a family, nil for an unknown one. A family of heads of one width is named with it behind a colon.
func find(name string) *family {
	name, _, _ = strings.Cut(name, ":")
	for i := range families {
		if families[i].name == name {
			return &families[i]
		}
	}
	return nil
}

// Names lists the families.
func Names() (list []string) {
	for i := range families {
		list = append(list, families[i].name)
	}
	return list
}

// Variants are those of a family in the order in which they are preferred, nil for an unknown family.
func Variants(name string) []Variant {
	if row := find(name); row != nil {
		return row.variants
	}
	return nil
}

// Find is the variant of a family, and whether there is one.
func Find(name, variant string) (Variant, bool) {
	for _, have := range Variants(name) {
		if have.Name == variant {
			return have, true
		}
	}
	return Variant{}, false
}

// Lacks is what the device lacks to execute the variant, "" for nothing.
func (v *Variant) Lacks(f *Features) string {
	for _, need := range v.needs {
		if !need.has(f) {
			return need.name
		}
	}
	return ""
}

// GroupSize is the number of items of the groups that it is launched in, 0 where the device chooses.
func (v *Variant) GroupSize() int {
	switch v.Grid {
	case ByCells, ByGroups:
		return GroupItems
	case ByColumn:
		return pack.TileN * v.Slices
	}
	return 0
}

// Suits reports whether the variant is one to prefer on the device.
func (v *Variant) Suits(f *Features) bool { return v.Lacks(f) == "" && (f.Dedicated || !v.dedicated) }

// First is the first variant of a family that suits the device, and the name of every one that the device can execute;
// without one that suits, the first of those. It is what Code.Choose takes of an artifact that carries all variants.
func First(name string, f *Features) (first string, can []string) {
	suits := false
	for _, variant := range Variants(name) {
		if variant.Lacks(f) != "" {
			continue
		}
		can = append(can, variant.Name)
		if first == "" || !suits && variant.Suits(f) {
			first, suits = variant.Name, variant.Suits(f)
		}
	}
	return first, can
}

// Source is the program of a variant of a family, with ROWS as the number of rows that an item computes.
func Source(name string, v *Variant, rows int) (string, error) {
	row := find(name)
	if row == nil {
		return "", fmt.Errorf("there is no family %q of kernels", name)
	}
	var text strings.Builder
	for _, define := range slices.Concat(row.defines, v.defines) {
		fmt.Fprintf(&text, "#define %s\n", define)
	}
	if v.Rows > 0 {
		fmt.Fprintf(&text, "#define ROWS %d\n", rows)
	}
	if _, dim, ok := strings.Cut(name, ":"); ok {
		fmt.Fprintf(&text, "#define DIM %s\n", dim)
	}
	for _, file := range []string{"prelude.cl", row.file} {
		data, err := files.ReadFile(file)
		if err != nil {
			return "", err
		}
		text.Write(data)
	}
	return text.String(), nil
}

// Probe is the program with which the driver finds out about memory.
func Probe() (string, error) {
	data, err := files.ReadFile("probe.cl")
	return string(data), err
}

// needed are those that the nodes of a graph need, in the order of first use.
func needed(graph *op.Graph) (list []string) {
	for _, use := range Uses(graph) {
		if !slices.Contains(list, use.Family) {
			list = append(list, use.Family)
		}
	}
	return list
}

// FamiliesOf are those that an operator needs, the one that it is named for last; none for what has no kernel.
func FamiliesOf(operator *op.Op) []string {
	kv := string(operator.KV)
	switch operator.Kind {
	case op.MatMul:
		name := Product(operator.Scheme)
		if find(name) == nil {
			return nil
		}
		if operator.Scheme.RoundsResults() {
			return []string{"norms", name}
		}
		return []string{name}
	case op.ExpertMatMul:
		name := Experts(operator.Scheme)
		if find(name) == nil {
			return nil
		}
		return []string{name}
	case op.Attention, op.Estimate:
		name := fmt.Sprintf("%s %s", operator.Kind, kv)
		if find(name) == nil {
			return nil
		}
		return []string{fmt.Sprintf("%s:%d", name, operator.HeadDim)}
	}
	name := kinds[operator.Kind]
	switch {
	case operator.Kind == op.KVAppend:
		name = "heads " + kv
	case operator.Kind == op.Embed && operator.Scheme != "" && operator.Scheme != op.I32Q8C:
		return nil
	}
	if find(name) == nil {
		return nil
	}
	return []string{name}
}

// kinds are the families of the kinds that have one each.
var kinds = map[op.Kind]string{
	op.Embed: "rows", op.SelectRow: "rows", op.GLU: "rows", op.Activate: "rows", op.Softcap: "rows", op.Clip: "rows",
	op.Gate: "rows", op.Add: "rows", op.Copy: "rows", op.Combine: "rows", op.Route: "rows",
	op.Norm: "norms", op.LayerNorm: "norms", op.QuantRows: "norms",
	op.QKNorm: "heads f32", op.Rope: "heads f32",
}

// ofFamilies are the kinds with several families each, see FamiliesOf.
var ofFamilies = []op.Kind{op.MatMul, op.ExpertMatMul, op.KVAppend, op.Attention, op.Estimate}

// Kinds are the operators that have kernels, in the order of op.Kinds.
// RATIONALE: Which operators does the driver `opencl` leave to others?
func Kinds() (list []op.Kind) {
	for _, kind := range op.Kinds {
		if kinds[kind] != "" || slices.Contains(ofFamilies, kind) {
			list = append(list, kind)
		}
	}
	return list
}

// Base is the name of a family without the width of heads.
func Base(family string) string {
	base, _, _ := strings.Cut(family, ":")
	return base
}
