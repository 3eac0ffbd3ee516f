package price

import (
	"slices"
	"strings"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/source"
)

// Access is a processor and a view that it reads or has written.
type Access struct {
	proc string
	view planir.View
	name string // of both
}

// accessOf names the access by processor and view: equal names mean equal data.
func accessOf(proc string, view planir.View) Access {
	return Access{proc, view, proc + " " + view.String()}
}

// setAccesses notes which processor reads what, and which wrote each output last.
func (c *Candidate) setAccesses(node *lower.Node, pieces []lower.Piece) {
	written := map[planir.View]bool{}
	for i := len(pieces) - 1; i >= 0; i-- {
		piece := &pieces[i]
		for _, view := range piece.Out {
			if slices.Contains(node.Out, view.Buffer) && !written[view] {
				written[view] = true
				c.Writes = append(c.Writes, accessOf(piece.Proc, view))
			}
		}
		if piece.Role == lower.Compute {
			for _, view := range piece.In {
				c.Reads = append(c.Reads, accessOf(piece.Proc, view))
			}
		}
	}
	for _, list := range [][]Access{c.Reads, c.Writes} {
		slices.SortFunc(list, func(a, b Access) int { return strings.Compare(a.name, b.name) })
	}
}

// Locations returns the location class of accesses: which processor holds (or reads) which part of the values in
// buffers.
func Locations(list []Access, buffers []string) string {
	var parts []string
	for _, access := range list {
		if slices.Contains(buffers, access.view.Buffer) {
			parts = append(parts, access.name)
		}
	}
	return strings.Join(parts, "; ")
}

// Region is an access with numbers instead of names, since problems compare every location of a node's outputs with
// every location from which the next node reads them.
type Region struct {
	proc     int // index in Section.Procs
	value    int // index in the buffers between the two nodes
	view     planir.View
	elements int64 // bytes of one
}

// Regions returns the accesses to buffers.
func (s *Section) Regions(list []Access, buffers []string) []Region {
	var out []Region
	for _, access := range list {
		if value := slices.Index(buffers, access.view.Buffer); value >= 0 {
			proc := slices.IndexFunc(s.Procs, func(p planir.Proc) bool { return p.Name == access.proc })
			out = append(out, Region{proc, value, access.view, int64(s.Values[access.view.Buffer].Type.Bytes())})
		}
	}
	return out
}

// Handover returns the time in ns from the end of a node, whose outputs lie where writes says, to the start of the next
// one. It is the time of the slowest reader: one flag and all its copies. A processor that reads only what it wrote
// itself does not wait. The source is the weakest of all flags and copies, empty if no lane waits.
func (s *Section) Handover(writes, reads []Region) (slowest int64, from source.Source, err error) {
	for len(reads) > 0 {
		same := 1 // accesses are sorted by reader
		for same < len(reads) && reads[same].proc == reads[0].proc {
			same++
		}
		ns, of, err := s.waitNS(writes, reads[:same])
		if err != nil {
			return 0, "", err
		}
		slowest, from = max(slowest, ns), source.Weakest(from, of)
		reads = reads[same:]
	}
	return slowest, from, inRange(slowest, "handing %s over", s.Name)
}

// waitNS returns how long one reader waits for the others' results. Processors that never appear together need no
// price, and have none.
func (s *Section) waitNS(writes, reads []Region) (ns int64, from source.Source, err error) {
	var wait, copies int64
	for i := range reads {
		read := &reads[i]
		for j := range writes {
			write := &writes[j]
			if read.proc == write.proc || read.value != write.value {
				continue
			}
			rows, cols := overlapOf(&read.view, &write.view)
			if rows <= 0 || cols <= 0 {
				continue
			}
			flag, err := s.flagPrice(write.proc, read.proc)
			if err != nil {
				return 0, "", err
			}
			if flag.apart {
				continue
			}
			bytes := int64(rows) * int64(cols) * read.elements
			copied, err := s.Costs.Copy(s.Procs[write.proc].Name, s.Procs[read.proc].Name, bytes)
			if err != nil {
				return 0, "", err
			}
			wait, copies = max(wait, flag.ns), copies+copied.NS
			from = source.Weakest(from, flag.source, copied.Source)
		}
	}
	return wait + copies, from, nil
}

// overlapOf returns how many rows and columns two views have in common.
func overlapOf(a, b *planir.View) (rows, cols int) {
	return min(a.R1, b.R1) - max(a.R0, b.R0), min(a.C1, b.C1) - max(a.C0, b.C0)
}

// flag is the price of a flag from one processor to another, once looked up.
type flag struct {
	known, apart bool
	ns           int64
	source       source.Source
}

// flagPrice looks up the price of a flag between processors.
func (s *Section) flagPrice(from, to int) (*flag, error) {
	n := len(s.Procs)
	if s.flags == nil {
		s.flags = make([]flag, n*n)
	}
	price := &s.flags[from*n+to]
	if price.known {
		return price, nil
	}
	writer, reader := s.Procs[from].Name, s.Procs[to].Name
	if price.apart = s.Apart[[2]string{reader, writer}]; !price.apart {
		estimate, err := s.Costs.Handover(writer, reader)
		if err != nil {
			return nil, err
		}
		price.ns, price.source = estimate.NS, estimate.Source
	}
	price.known = true
	return price, nil
}
