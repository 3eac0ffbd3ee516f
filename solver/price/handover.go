package price

import (
	"slices"
	"strings"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/solver/problem"
)

// access is a processor and a view that it reads or has written.
type Access struct {
	proc string
	view planir.View
	name string // of both
}

// access notes who reads what, and who wrote each output last.
func (c *Candidate) access(n *lower.Node, pieces []lower.Piece) {
	taken := map[planir.View]bool{}
	for k := len(pieces) - 1; k >= 0; k-- {
		for _, v := range pieces[k].Out {
			if slices.Contains(n.Out, v.Buffer) && !taken[v] {
				taken[v] = true
				name := pieces[k].Proc + " " + v.String()
				c.Writes = append(c.Writes, Access{pieces[k].Proc, v, name})
			}
		}
		if pieces[k].Role == lower.Compute {
			for _, v := range pieces[k].In {
				c.Reads = append(c.Reads, Access{pieces[k].Proc, v, pieces[k].Proc + " " + v.String()})
			}
		}
	}
	for _, list := range [][]Access{c.Reads, c.Writes} {
		slices.SortFunc(list, func(a, b Access) int { return strings.Compare(a.name, b.name) })
	}
}

// locations is the location class of accesses: who holds (or reads) which part of the values in buffers.
func Locations(list []Access, buffers []string) string {
	var parts []string
	for _, a := range list {
		if slices.Contains(buffers, a.view.Buffer) {
			parts = append(parts, a.name)
		}
	}
	return strings.Join(parts, "; ")
}

// place is an access with numbers for names: instances weigh every location of a node's outputs against every location in
// which the next one reads them.
type Place struct {
	proc           int // index in stage.procs
	value          int // index in the buffers between the two nodes
	r0, r1, c0, c1 int
	bytes          int64 // of an element
}

// places are the accesses to buffers.
func (st *Section) Places(list []Access, buffers []string) []Place {
	var out []Place
	for _, a := range list {
		if k := slices.Index(buffers, a.view.Buffer); k >= 0 {
			proc := slices.IndexFunc(st.Procs, func(p planir.Proc) bool { return p.Name == a.proc })
			out = append(out, Place{proc, k, a.view.R0, a.view.R1, a.view.C0, a.view.C1, int64(st.Values[a.view.Buffer].Type.Bytes())})
		}
	}
	return out
}

// hop is the price of a flag from one processor to another, once looked up.
type hop struct {
	known, apart bool
	ns           int64
}

// handover is the time from the end of a node, whose outputs lie as writes say, to the start of the next.
// A processor that reads only what it wrote itself waits for nobody. Between processors that never
// appear together there is no price, and none is needed.
func (st *Section) Handover(writes, reads []Place) (int64, error) {
	n := len(st.Procs)
	if st.hops == nil {
		st.hops = make([]hop, n*n)
	}
	var worst int64
	for i := range reads {
		if i > 0 && reads[i-1].proc == reads[i].proc {
			continue // accesses are sorted: one round per reader
		}
		var flag, move int64
		for k := i; k < len(reads) && reads[k].proc == reads[i].proc; k++ {
			r := &reads[k]
			for j := range writes {
				w := &writes[j]
				if r.proc == w.proc || r.value != w.value || r.r0 >= w.r1 || w.r0 >= r.r1 || r.c0 >= w.c1 || w.c0 >= r.c1 {
					continue
				}
				h, from, to := &st.hops[w.proc*n+r.proc], st.Procs[w.proc].Name, st.Procs[r.proc].Name
				if !h.known {
					if h.apart = st.Apart[[2]string{to, from}]; !h.apart {
						hand, err := st.Source.Handover(from, to)
						if err != nil {
							return 0, err
						}
						h.ns = hand.NS
					}
					h.known = true
				}
				if h.apart {
					continue
				}
				rows, cols := min(r.r1, w.r1)-max(r.r0, w.r0), min(r.c1, w.c1)-max(r.c0, w.c0)
				c, err := st.Source.Copy(from, to, int64(rows)*int64(cols)*r.bytes)
				if err != nil {
					return 0, err
				}
				flag, move = max(flag, h.ns), move+c
			}
		}
		worst = max(worst, flag+move)
	}
	if worst > problem.MaxNS {
		return worst, reckoned(worst, "handing %s over", st.Name)
	}
	return worst, nil
}
