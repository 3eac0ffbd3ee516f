package op

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Scheme names activation and weight quantisation, written activation/weight ("a8t/q8c").
type Scheme string

const (
	A32W32    Scheme = "a32/w32"
	A32W16    Scheme = "a32/w16"
	A8TQ8C    Scheme = "a8t/q8c"
	A8SQ8C    Scheme = "a8s/q8c"
	A8S2Q8C   Scheme = "a8s2/q8c"
	A8S4Q8C   Scheme = "a8s4/q8c"
	A8OQ8C    Scheme = "a8o/q8c"
	A8TQ6C    Scheme = "a8t/q6c"
	A8TQ4B32  Scheme = "a8t/q4b32"
	A8TQ4B128 Scheme = "a8t/q4b128"
	A8CQ4B32  Scheme = "a8c/q4b32"
	A16SQ8C   Scheme = "a16s/q8c"
	A16SQ4C   Scheme = "a16s/q4c"
	A16FW16   Scheme = "a16f/w16"
	A16FQ8C   Scheme = "a16f/q8c"
	A16FQ4B32 Scheme = "a16f/q4b32"
)

// schemeRow answers every question that hetc asks about a scheme of matrix products, beyond those about its halves.
type schemeRow struct {
	scheme Scheme
	// drivers execute it, besides sim, which executes what its SoC lists.
	drivers []string
	// twin is the scheme whose products have the same operands and the same arithmetic, "": none.
	twin Scheme
}

// schemeTable has a row for each scheme, in the order in which they are listed everywhere.
var schemeTable = []schemeRow{
	{scheme: A32W32, drivers: []string{"host", "ort", "opencl"}},
	{scheme: A32W16, drivers: []string{"host", "opencl"}},
	{scheme: A8TQ8C, drivers: []string{"host", "ort", "opencl"}, twin: A8SQ8C},
	{scheme: A8SQ8C, drivers: []string{"host", "ort", "qnn", "opencl"}, twin: A8TQ8C},
	{scheme: A8S2Q8C, drivers: []string{"host", "ort", "opencl"}, twin: A8TQ8C},
	{scheme: A8S4Q8C, drivers: []string{"host", "ort", "opencl"}, twin: A8TQ8C},
	{scheme: A8OQ8C, drivers: []string{"host", "ort", "qnn", "opencl"}, twin: A8TQ8C}, // llm.npu's shadow outliers
	{scheme: A8TQ6C, drivers: []string{"host"}},
	{scheme: A8TQ4B32, drivers: []string{"host", "ort", "opencl"}},
	{scheme: A8TQ4B128, drivers: []string{"host", "ort", "opencl"}},
	{scheme: A8CQ4B32, drivers: []string{"host"}},
	{scheme: A16SQ8C, drivers: []string{"host", "qnn", "opencl"}},
	{scheme: A16SQ4C, drivers: []string{"host", "qnn", "opencl"}},
	{scheme: A16FW16, drivers: []string{"host", "qnn", "opencl"}},
	{scheme: A16FQ8C, drivers: []string{"host", "qnn", "opencl"}}, // the W8A16 of Agent.xpu
	{scheme: A16FQ4B32, drivers: []string{"host", "qnn", "opencl"}},
}

// activationRow answers every question about what enters a product, and how it is multiplied.
type activationRow struct {
	name string
	does string // the documentation
	rows bool   // u8 rows with a scale each
	// scales is how many static scales, constants of the plan from a calibration, rows choose from. 0: each has its
	// own, or none.
	scales  int
	columns bool // weights in blocks are requantised: 8 bit with a scale per column, while they are multiplied
	shadow  bool // what exceeds the static scale is multiplied beside the product, by an OutlierMatMul
	grid    bool // f32 values rounded to multiples of a static step each inside the product, as are its results
	half    bool // f32 values rounded to f16 inside the product, as are its results
}

// activationTable has a row for each first half of a scheme.
var activationTable = []activationRow{
	{name: "a32", does: "float32"},
	{name: "a8t", does: "8 bit with a scale per row, computed when they are used", rows: true},
	{name: "a8s", does: "8 bit with one static scale for all rows, from a calibration", rows: true, scales: 1},
	{name: "a8s2", does: "8 bit with two static scales, of which every row takes the smallest that holds it",
		rows: true, scales: 2},
	{name: "a8s4", does: "8 bit with four static scales, of which every row takes the smallest that holds it",
		rows: true, scales: 4},
	{name: "a8o", does: "8 bit with one static scale for all rows but their largest channels, whose remainder is multiplied in float32 beside the product",
		rows: true, scales: 1, shadow: true},
	{name: "a8c", does: "8 bit as a8t, times a weight that is requantised while it is multiplied: to 8 bit with a scale per column",
		rows: true, columns: true},
	{name: "a16s", does: "16 bit with a static step each of what enters and of what is computed, from a calibration",
		grid: true},
	{name: "a16f", does: "half precision, of what enters and of what is computed", half: true},
	{name: "i32", does: "row numbers: rows of a table are looked up"},
}

// weightRow answers every question about the stored form of a weight.
type weightRow struct {
	name        string
	does        string // the documentation
	bits        int    // of a value
	block       int    // values of a column that share one scale, 0: no blocks
	blockBytes  int    // beside the values of a block
	columnBytes int    // beside the values of a column
	table       Scheme // of an Embed that looks rows up in it, "": none does
	fewRows     bool   // no kernel packs rows to multiply them with it
}

// weightTable has a row for each second half of a scheme.
var weightTable = []weightRow{
	{name: "w32", does: "float32: whatever was stored, exactly", bits: 32},
	{name: "w16", does: "16-bit floats: the stored values of a model in bfloat16", bits: 16},
	{name: "q8c", does: "8 bit with a scale per column", bits: 8, columnBytes: 8, // and the sum of the column
		table: I32Q8C},
	{name: "q6c", does: "6 bit with a searched scale per column", bits: 6, columnBytes: 4, table: I32Q6C, fewRows: true},
	{name: "q4c", does: "4 bit with a searched scale per column", bits: 4, columnBytes: 4},
	{name: "q4b32", does: "4 bit with a float16 scale per 32 values of a column", bits: 4, block: 32, blockBytes: 2},
	{name: "q4b128", does: "4 bit with a float16 scale per 128 values of a column", bits: 4, block: 128, blockBytes: 2},
}

// I32Q8C and I32Q6C are the schemes of an Embed (ids are i32) that looks rows up in the weight of a tied head. They are
// none of Schemes: a processor that executes Embed and reads such weights in hetc's own tiles can do it.
const (
	I32Q8C Scheme = "i32/q8c"
	I32Q6C Scheme = "i32/q6c"
)

// Table returns the scheme of an Embed that looks rows up in a weight packed under the scheme, "" where none does.
func (s Scheme) Table() Scheme {
	if packed := weightRowOf(s.Weight()); packed != nil {
		return packed.table
	}
	return ""
}

// FewRows reports whether weights of the scheme are for few rows: no kernel packs rows to multiply them with these.
func (s Scheme) FewRows() bool {
	packed := weightRowOf(s.Weight())
	return packed != nil && packed.fewRows
}

// LooksUp reports whether the scheme is that of an Embed.
func (s Scheme) LooksUp() bool { return s != "" && s == s.Table() }

// GridMax is the largest multiple of its step that a 16-bit activation takes, of either sign.
const GridMax = 1<<15 - 1

// Schemes lists the schemes of matrix products that hetc can pack and execute.
var Schemes = SchemesOf("host")

// SchemesOf lists the schemes that a driver executes, "host" all of them: it is the numeric reference.
func SchemesOf(driver string) []Scheme {
	var list []Scheme
	for _, known := range schemeTable {
		if slices.Contains(known.drivers, driver) {
			list = append(list, known.scheme)
		}
	}
	return list
}

// ParseScheme accepts the written form and refuses schemes hetc does not execute.
func ParseScheme(text string) (Scheme, error) {
	if scheme := Scheme(text); slices.Contains(Schemes, scheme) {
		return scheme, nil
	}
	return "", fmt.Errorf("parse scheme %q: want one of %s", text, schemeNames(Schemes))
}

// expertSchemes names the schemes of ExpertMatMul.
func expertSchemes() string {
	return schemeNames(slices.DeleteFunc(slices.Clone(Schemes), func(scheme Scheme) bool { return !scheme.Experts() }))
}

// schemeNames joins schemes for messages and documents.
func schemeNames(list []Scheme) string {
	names := make([]string, len(list))
	for i, scheme := range list {
		names[i] = string(scheme)
	}
	return strings.Join(names, ", ")
}

// Weight returns the weight half of the scheme ("w32", "q8c", "q4b32").
func (s Scheme) Weight() string {
	_, weight, _ := strings.Cut(string(s), "/")
	return weight
}

// Activation returns the activation half of the scheme ("a32", "a8t").
func (s Scheme) Activation() string {
	activation, _, _ := strings.Cut(string(s), "/")
	return activation
}

// activations returns the row of the scheme's activation half; that of an unknown one says no to everything.
func (s Scheme) activations() *activationRow {
	name := s.Activation()
	for i := range activationTable {
		if activationTable[i].name == name {
			return &activationTable[i]
		}
	}
	return &unknownActivations
}

var unknownActivations activationRow

// weightRowOf returns the row of a weight scheme, nil for plain types and unknown ones.
func weightRowOf(weight string) *weightRow {
	for i := range weightTable {
		if weightTable[i].name == weight {
			return &weightTable[i]
		}
	}
	return nil
}

// QuantisedRows reports whether activations enter as u8 rows with scales.
func (s Scheme) QuantisedRows() bool { return s.activations().rows }

// Scales returns the number of static scales that 8-bit rows choose from, 0 where each has its own or none.
func (s Scheme) Scales() int { return s.activations().scales }

// Requantises reports whether a weight in blocks is multiplied as one of 8 bits with a scale per column, which is made of
// it tile by tile. Every k of it is then summed without a scale in between, as with weights of 8 bits, and memory holds
// the blocks only.
func (s Scheme) Requantises() bool { return s.activations().columns }

// Shadow reports whether an OutlierMatMul beside the product multiplies what exceeds the static scale of 8-bit rows.
func (s Scheme) Shadow() bool { return s.activations().shadow }

// OutlierChannels returns how many of the k channels that enter a product are expected to exceed the static scale of a
// scheme with shadow outliers in some row of a call. llm.npu (3.3) found 5 to 15 channels in an inference, fewer than
// 0.3 % of them; small models have more.
func OutlierChannels(k int) int { return min(k, max(32, (k+63)/64)) }

// FewChannels is the number of channels with which an OutlierMatMul is measured beside the usual one, so that prices of
// other numbers follow.
const FewChannels = 4

// MostChannels returns the most channels that an OutlierMatMul of k channels may multiply at once, whatever a
// calibration counted: their rows of the weight are held in the scratch memory of every core.
func MostChannels(k int) int { return min(k, max(128, (k+15)/16)) }

// Gathered returns how many channels an OutlierMatMul multiplies at once.
func (o Op) Gathered() int {
	if o.Channels > 0 {
		return o.Channels
	}
	return OutlierChannels(o.K)
}

// Grid reports whether activations enter and leave as f32 values that are rounded to multiples of a static step each,
// inside the product: the weight steps.
func (s Scheme) Grid() bool { return s.activations().grid }

// Half reports whether activations enter and leave as f32 values that are rounded to f16, inside the product.
func (s Scheme) Half() bool { return s.activations().half }

// Static reports whether the scales of activations are constants of the plan, which come from a calibration, rather
// than of each row.
func (s Scheme) Static() bool { return s.Scales() > 0 || s.Grid() }

// Rounds reports whether a product rounds activations, so that two right executions may differ by a step of theirs.
func (s Scheme) Rounds() bool { return s.QuantisedRows() || s.RoundsResults() }

// RoundsResults reports whether a product rounds what it computes, so that it has no partial sums.
func (s Scheme) RoundsResults() bool { return s.Grid() || s.Half() }

// Experts reports whether an ExpertMatMul can have the scheme.
func (s Scheme) Experts() bool { return !s.RoundsResults() && !s.Shadow() && !s.Requantises() }

// Twin returns the scheme whose products have the same operands and arithmetic, so that they take the same time; "" if
// there is none. For static scales of rows it is the scheme with a scale for each row; for that one it is the scheme
// with a single static scale.
func (s Scheme) Twin() Scheme {
	for _, known := range schemeTable {
		if known.scheme == s {
			return known.twin
		}
	}
	return ""
}

// Alike returns the schemes whose products take the same time: the scheme itself first, then its twin and all other
// twins of that.
func (s Scheme) Alike() []Scheme {
	out, twin := []Scheme{s}, s.Twin()
	for _, other := range schemeTable {
		if twin != "" && other.scheme != s && (other.scheme == twin || other.twin == twin || other.twin == s) {
			out = append(out, other.scheme)
		}
	}
	return out
}

// QuantRows returns the operator that quantises what enters a product of the scheme: tokens with fan rows each (0 and
// 1: one) of n numbers.
func (s Scheme) QuantRows(tokens, cols, fan int) Op {
	operator := Op{Kind: QuantRows, M: tokens, N: cols, Static: s.Scales() > 0}
	if fan > 1 {
		operator.Fan = fan
	}
	if s.Scales() > 1 {
		operator.Scales = s.Scales()
	}
	return operator
}

// MaxScales is the most static scales that QuantRows chooses from.
const MaxScales = 4

// StaticScale returns the one of several static scales that a row of 8-bit codes has whose largest magnitude is top:
// the smallest that holds it, which is not below top/127 in float32, the scale that the row would have of its own; the
// largest where none holds it.
func StaticScale(scales []float32, top float32) float32 {
	own, least, most := top/127, float32(math.Inf(1)), scales[0]
	for _, scale := range scales {
		most = max(most, scale)
		if scale >= own {
			least = min(least, scale)
		}
	}
	return min(least, most)
}

// WeightBytes returns the stored size of a [K,N] weight in the weight scheme, without padding: its values in whole
// bytes a column, or in whole blocks, and what stands beside them. It is 0 for an unknown scheme.
func WeightBytes(scheme string, k, n int) int64 {
	packed := weightRowOf(scheme)
	switch {
	case packed == nil:
		return 0
	case packed.block > 0:
		blocks := int64((k + packed.block - 1) / packed.block)
		return blocks * int64(packed.block*packed.bits/8+packed.blockBytes) * int64(n)
	}
	column := (int64(k)*int64(packed.bits) + 7) / 8
	return (column + int64(packed.columnBytes)) * int64(n)
}

// BlockK returns the number of rows of a weight that share one scale: parts of it along K are multiples of it. It is 1
// for schemes without blocks.
func (s Scheme) BlockK() int {
	if packed := weightRowOf(s.Weight()); packed != nil && packed.block > 0 {
		return packed.block
	}
	return 1
}
