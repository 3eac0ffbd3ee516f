package price

import (
	"maps"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// Facts are what the compilers of a device reported about graphs: sizes and refusals, by operator. They decide between
// candidates of equal cost and bound what is held. No time is computed from them.
type Facts struct {
	alone map[string]*record.Facts // by processor and operator
	// By processor and operator without its rows: the numbers of rows that the compiler was asked about, ascending,
	// and what it said about binaries of several.
	rows   map[string][]int
	shared map[string][]*record.Facts
}

// anyRows returns an operator without its number of rows.
func anyRows(proc string, operator op.Op) string {
	operator.M = 1
	return proc + " " + operator.Key()
}

// NewFacts takes the facts about the SoC's device from a record. Facts for another device are an error.
func NewFacts(set *record.Set, soc *socs.SoC) (*Facts, error) {
	if set == nil {
		return nil, nil
	}
	facts := &Facts{map[string]*record.Facts{}, map[string][]int{}, map[string][]*record.Facts{}}
	for _, fact := range set.Facts() {
		proc := soc.Processor(fact.Proc)
		if proc == nil || proc.Target == nil {
			continue
		}
		if want := proc.Target.Options(); !maps.Equal(fact.Options, want) {
			return nil, diag.New(diag.ClassInput,
				"solve: compiler facts of processor %q were made with %v, and its target is %v",
				fact.Proc, fact.Options, want).
				WithHint("ask the compiler for this SoC: hetc profile --compiler-only --target %s --model MODEL "+
					"--workload WORKLOAD -o facts.jsonl",
					soc.Name)
		}
		key := anyRows(fact.Proc, *fact.Op)
		if fact.Rows != nil {
			facts.shared[key] = append(facts.shared[key], fact)
			continue
		}
		facts.alone[fact.Proc+" "+fact.Op.Key()] = fact
		facts.rows[key] = append(facts.rows[key], fact.Op.M)
	}
	for _, list := range facts.rows {
		slices.Sort(list)
	}
	if len(facts.alone) == 0 {
		return nil, nil
	}
	return facts, nil
}

// About returns what the compiler said about an operator as a graph by itself, nil where it was not asked.
func (f *Facts) About(proc string, operator op.Op) *record.Facts {
	if f == nil || !operator.HasScheme() {
		return nil
	}
	return f.alone[proc+" "+operator.Key()]
}

// Lengths returns the numbers of rows that the compiler was asked about for an operator.
func (f *Facts) Lengths(proc string, operator op.Op) []int {
	if f == nil || !operator.HasScheme() {
		return nil
	}
	return f.rows[anyRows(proc, operator)]
}

// rank orders numbers of rows that cost the same: first those that are known not to spill, then those about which the
// compiler was not asked, then by spilled bytes. ok is false for a graph that the compiler refuses.
func (f *Facts) rank(proc string, operator op.Op) (rank int64, ok bool) {
	fact := f.About(proc, operator)
	switch {
	case fact == nil:
		return 1, true
	case fact.Refused != "":
		return 0, false
	case fact.SpillBytes == 0:
		return 0, true
	}
	return 1 + fact.SpillBytes, true
}

// alike is the ratio up to which times count as equal: medians are not measured better than that.
const alike = 1.02

// SameTime reports whether two times in ns count as equal.
func SameTime(a, b int64) bool {
	return float64(max(a, b)) <= float64(alike*float64(min(a, b)))
}

// Charge returns the bytes of an operator's graphs at these numbers of rows, in one binary that has its weights once.
// alone is the largest graph by itself. all adds, for each further graph, what the compiler reported where it was asked
// for several. ok is false if it was asked about none of them.
func (f *Facts) Charge(proc string, operator op.Op, rows []int) (alone, all int64, ok bool) {
	if f == nil {
		return 0, 0, false
	}
	alone = f.largest(proc, operator, rows)
	if alone == 0 {
		alone = f.largest(proc, operator, f.Lengths(proc, operator))
	}
	if alone == 0 {
		return 0, 0, false
	}
	each := alone // without an answer every graph has weights of its own
	for _, fact := range f.shared[anyRows(proc, operator)] {
		if fact.Refused != "" {
			continue
		}
		if one := f.largest(proc, operator, fact.Rows); one > 0 {
			further := int64(len(fact.Rows) - 1)
			each = min(each, max(0, fact.Bytes-one+further-1)/further)
		}
	}
	return alone, alone + int64(len(rows)-1)*each, true
}

// largest returns the size in bytes of the largest graph of an operator at some numbers of rows.
func (f *Facts) largest(proc string, operator op.Op, rows []int) (bytes int64) {
	for _, m := range rows {
		operator.M = m
		if fact := f.About(proc, operator); fact != nil {
			bytes = max(bytes, fact.Bytes)
		}
	}
	return bytes
}
