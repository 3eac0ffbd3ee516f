package price

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// Facts are what the compilers of a device said about graphs: sizes and refusals, by the operator. They choose between
// what costs the same and bound what is held; no time is computed from them.
type Facts struct {
	alone  map[string]*record.Facts   // by processor and operator
	rows   map[string][]int           // numbers of rows that the compiler was asked about, ascending, by processor and operator without them
	shared map[string][]*record.Facts // binaries of several numbers of rows, likewise
}

// anyRows is an operator without its number of rows.
func anyRows(proc string, o op.Op) string {
	o.M = 1
	return proc + " " + o.Key()
}

// NewFacts takes what a record has for the SoC's device. Facts that were made for another device are an error.
func NewFacts(set *record.Set, s *socs.SoC) (*Facts, error) {
	if set == nil {
		return nil, nil
	}
	f := &Facts{map[string]*record.Facts{}, map[string][]int{}, map[string][]*record.Facts{}}
	for _, x := range set.Facts() {
		p := s.Processor(x.Proc)
		if p == nil || p.Target == nil {
			continue
		}
		if want := p.Target.Options(); !maps.Equal(x.Options, want) {
			return nil, diag.New(diag.ClassInput, "solve: compiler facts of processor %q were made with %v, and its target is %v", x.Proc, x.Options, want).
				WithHint("ask the compiler for this SoC: hetc profile --compiler-only --target %s --model MODEL --workload WORKLOAD -o facts.jsonl", s.Name)
		}
		key := anyRows(x.Proc, *x.Op)
		if x.Rows != nil {
			f.shared[key] = append(f.shared[key], x)
			continue
		}
		f.alone[x.Proc+" "+x.Op.Key()] = x
		f.rows[key] = append(f.rows[key], x.Op.M)
	}
	for _, list := range f.rows {
		slices.Sort(list)
	}
	if len(f.alone) == 0 {
		return nil, nil
	}
	return f, nil
}

// of is what the compiler said about an operator as a graph by itself, nil where it was not asked.
func (f *Facts) About(proc string, o op.Op) *record.Facts {
	if f == nil || !o.HasScheme() {
		return nil
	}
	return f.alone[proc+" "+o.Key()]
}

// lengths are the numbers of rows that the compiler was asked about for an operator.
func (f *Facts) Lengths(proc string, o op.Op) []int {
	if f == nil || !o.HasScheme() {
		return nil
	}
	return f.rows[anyRows(proc, o)]
}

// rank orders numbers of rows that cost the same: first those that are known not to spill, then those that nobody asked about,
// then by what they spill. A graph that the compiler refuses is none.
func (f *Facts) rank(proc string, o op.Op) (rank int64, ok bool) {
	x := f.About(proc, o)
	switch {
	case x == nil:
		return 1, true
	case x.Refused != "":
		return 0, false
	case x.SpillBytes == 0:
		return 0, true
	}
	return 1 + x.SpillBytes, true
}

// alike is the ratio of times that are taken for the same: medians are measured to that, and no better.
const alike = 1.02

func SameTime(a, b int64) bool {
	return float64(max(a, b)) <= float64(alike*float64(min(a, b)))
}

// charge is what the graphs of an operator at these numbers of rows take together, in one binary that has its weights once: the
// largest of them by itself, and for each further one what the compiler added where it was asked for several. ok is false
// where it was asked about none of this operator.
func (f *Facts) Charge(proc string, o op.Op, rows []int) (alone, all int64, ok bool) {
	if f == nil {
		return 0, 0, false
	}
	largest := func(rows []int) (n int64) {
		for _, m := range rows {
			o.M = m
			if x := f.About(proc, o); x != nil {
				n = max(n, x.Bytes)
			}
		}
		return n
	}
	known := f.Lengths(proc, o)
	if alone = largest(rows); alone == 0 {
		alone = largest(known)
	}
	if alone == 0 {
		return 0, 0, false
	}
	each := alone // without an answer every graph has weights of its own
	for _, x := range f.shared[anyRows(proc, o)] {
		if x.Refused != "" {
			continue
		}
		if one := largest(x.Rows); one > 0 {
			n := int64(len(x.Rows) - 1)
			each = min(each, max(0, x.Bytes-one+n-1)/n)
		}
	}
	return alone, alone + int64(len(rows)-1)*each, true
}

// avoidSpill gives a share that is padded to the number of rows that was chosen for its price another one that takes the same time
// and spills less by what the compiler said, or is compiled at all. Those that it was asked about need be no multiples of the tile.
func (st *Section) avoidSpill(o op.Op, sh *planir.Share) {
	known := st.Facts.Lengths(sh.Proc, o)
	if sh.Form != "" || known == nil {
		return // compilers were asked about the default form
	}
	type option struct {
		rows     int
		ns, rank int64
	}
	var list []option
	cheapest := int64(math.MaxInt64)
	for _, m := range slices.Concat([]int{sh.PadRows}, st.pads(sh.Proc, o), known) {
		x := o
		if x.M = m; m < o.M {
			continue
		}
		rank, ok := st.Facts.rank(sh.Proc, x)
		e, err := st.Source.Together([]Task{{sh.Proc, x}})
		if !ok || err != nil {
			continue
		}
		list = append(list, option{m, e[0].NS, rank})
		cheapest = min(cheapest, e[0].NS)
	}
	list = slices.DeleteFunc(list, func(x option) bool { return !SameTime(x.ns, cheapest) })
	if len(list) > 0 { // else every one is refused, which is told where it is priced
		sh.PadRows = slices.MinFunc(list, func(a, b option) int { return cmp.Compare(a.rank, b.rank) }).rows // of equals what was chosen
	}
}
