package price

import (
	"cmp"
	"math"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
)

// maxPads is how many multiples of a processor's granularity are tried as numbers of rows.
const maxPads = 16

// chooseShape gives a share the number of rows and the form in which its processor is fastest alone. Among equally fast
// ones it prefers the default form and few rows. It tries the forms that the processor has and that have a price.
//
// A processor with static shapes executes standard numbers of rows, multiples of its tile. Prices are not monotone in
// them; paddedRows lists the numbers that are tried.
func (s *Section) chooseShape(node *lower.Node, axis planir.Axis, share *planir.Share) {
	share.Form = ""
	operator := shareOp(node.Op(), axis, share)
	rows := operator.M
	options := []int{max(rows, share.PadRows)}
	padded := s.mayPad(node, axis, share)
	if padded {
		options = s.paddedRows(share.Proc, operator)
	} else if proc := s.Proc(share.Proc); proc == nil || len(proc.Forms) == 0 {
		return
	}

	best := int64(math.MaxInt64)
	for _, option := range options {
		operator.M = option
		// A padded token, and other rows than those of a static scale, keep a graph from being one with its
		// neighbours'. What quantises for a static scale has the first rows, and compilers refuse it by itself: no form
		// is worth that.
		otherRows := node.Op().Scheme.Static() && option > options[0]
		isPaddedToken := rows == 1 && option > 1
		keepsApart := isPaddedToken || otherRows
		forms := []op.Form{""}
		if !otherRows {
			forms = append(forms, s.forms(share.Proc, operator)...)
		}
		for _, form := range forms {
			operator.Form = form
			estimate, err := predictAlone(s.Costs, Task{share.Proc, operator})
			if err != nil || estimate.NS >= best {
				continue
			}
			if keepsApart && SameTime(estimate.NS, best) {
				continue
			}
			best, share.Form = estimate.NS, form
			if padded {
				share.PadRows = option
			}
		}
		operator.Form = ""
	}
	operator.M = rows
	if padded && best < math.MaxInt64 {
		s.avoidSpill(operator, share)
	}
	if share.PadRows == rows {
		share.PadRows = 0
	}
}

// shareOp returns the part of an operator that a share computes.
func shareOp(operator op.Op, axis planir.Axis, share *planir.Share) op.Op {
	switch axis {
	case planir.AxisRows:
		operator.M = share.To - share.From
	case planir.AxisCols:
		operator.N = share.To - share.From
	case planir.AxisK:
		operator.K, operator.Bias = share.To-share.From, operator.Bias && share.From == 0
	}
	return operator
}

// mayPad reports whether a share's rows may be padded to a cheaper number. That is so on a processor with static
// shapes, for the share with the last rows.
func (s *Section) mayPad(node *lower.Node, axis planir.Axis, share *planir.Share) bool {
	if s.Static[share.Proc] == 0 || share.PadRows != 0 || axis == planir.AxisK || axis == planir.AxisHeads {
		return false
	}
	return axis != planir.AxisRows || share.To == node.Op().M
}

// paddedRows returns the numbers of rows to try on a processor with static shapes, ascending: the next multiples of its
// granularity, the next powers of two, and measured ones.
func (s *Section) paddedRows(proc string, operator op.Op) []int {
	unit, rows := s.Static[proc], operator.M
	power := unit
	for power < rows {
		power *= 2
	}
	next := op.RoundUp(rows, unit)
	options := []int{next, power}
	if rows == 1 { // decode: the compiler pads what it must
		return append([]int{1}, options...)
	}
	if !operator.HasScheme() { // the time of operators on rows grows with the rows
		return options
	}
	for rows := next + unit; rows < power && len(options) < maxPads; rows += unit {
		options = append(options, rows)
	}
	options = append(options, 2*power)
	for _, m := range s.Costs.Measured(Task{proc, operator}) {
		if m > rows && m%unit == 0 {
			options = append(options, m)
		}
	}
	return options
}

// forms returns the forms, besides the default, in which a processor can compute a product and that have a price.
func (s *Section) forms(proc string, operator op.Op) []op.Form {
	p := s.Proc(proc)
	if p == nil || len(p.Forms) == 0 {
		return nil
	}
	return slices.DeleteFunc(s.Costs.Forms(Task{proc, operator}),
		func(form op.Form) bool { return !p.HasForm(operator.Scheme, form) })
}

// avoidSpill may give a padded share another number of rows that takes the same time. It chooses one that spills less
// according to the compiler, or that the compiler accepts at all. Numbers of rows that the compiler was asked about
// need not be multiples of the tile.
func (s *Section) avoidSpill(operator op.Op, share *planir.Share) {
	known := s.Facts.Lengths(share.Proc, operator)
	if share.Form != "" || known == nil {
		return // compilers were asked about the default form
	}
	type option struct {
		rows     int
		ns, rank int64
	}
	var options []option
	cheapest := int64(math.MaxInt64)
	for _, rows := range slices.Concat([]int{share.PadRows}, s.paddedRows(share.Proc, operator), known) {
		if rows < operator.M {
			continue
		}
		padded := operator
		padded.M = rows
		rank, compiles := s.Facts.rank(share.Proc, padded)
		estimate, err := predictAlone(s.Costs, Task{share.Proc, padded})
		if !compiles || err != nil {
			continue
		}
		options = append(options, option{rows, estimate.NS, rank})
		cheapest = min(cheapest, estimate.NS)
	}
	options = slices.DeleteFunc(options, func(x option) bool { return !SameTime(x.ns, cheapest) })
	if len(options) == 0 {
		return // the compiler refuses all of them: Price tells
	}
	least := slices.MinFunc(options, func(a, b option) int { return cmp.Compare(a.rank, b.rank) })
	share.PadRows = least.rows // of equals the first: what was chosen
}
