package profiler

import (
	"context"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
)

// A processor that copies weights when it loads them is given few copies for a cold operator, all different, and some
// more beside another one.
func TestFewCopies(t *testing.T) {
	for _, c := range []struct {
		prepacks, company bool
		want              int
	}{{true, false, fewCopies}, {true, true, someCopies}, {false, false, 151}} {
		f := &fake{cost: func(string, op.Op, int) float64 { return 20_000 }, prepacks: c.prepacks, loaded: map[string]int{}, weights: map[string]bool{}}
		s := fakeSoC()
		rec, _ := newRecord(t, s)
		r := ask("a", matmul(4), 0)
		r.What.Footprint = 1 << 20
		if c.company {
			f.readers = map[*byte]string{} // what one has read, the other would find in a cache
			r.What.Concurrent = []record.Partner{{Proc: "b", Op: matmul(2), Layout: r.What.Layout, Cold: true}}
		}
		o := f.options()
		o.Rounds = 1
		if _, err := Run(context.Background(), s, []Request{r}, rec, o); err != nil {
			t.Fatal(err)
		}
		if got := f.loaded[matmul(4).Key()]; got != c.want {
			t.Errorf("prepacks %v, company %v: %d executables, want %d", c.prepacks, c.company, got, c.want)
		}
		if n := len(f.weights); c.prepacks && !c.company && n != fewCopies {
			t.Errorf("%d different weights, want %d", n, fewCopies)
		}
		for _, x := range rec.Set().All() {
			for _, ns := range x.Samples {
				if ns < 19_000 || ns > 22_000 {
					t.Errorf("prepacks %v: a sample of %v ns of an operator of 20000", c.prepacks, ns)
				}
			}
		}
	}
}

// renamed is a driver under another name.
type renamed struct{ driver.Driver }

func (renamed) Name() string { return "again" }

// Processors of a further driver lie on the same cores: what memory and hand-overs are to them is what they are to the
// first's.
func TestProbeOthers(t *testing.T) {
	require.Slow(t)
	s, err := Probe(context.Background(), host.New(), ProbeOptions{Fingerprint: host.Fingerprint(), Others: []driver.Driver{renamed{host.New()}}, memory: 16 << 20, window: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	half := len(s.Processors) / 2
	for i := range half {
		a, b := s.Processors[i], s.Processors[half+i]
		if b.Driver != "again" || b.Name != "again:"+b.Select || a.Select != b.Select || a.BandwidthGBps != b.BandwidthGBps || s.Concurrent(a.Name, b.Name) == nil {
			t.Errorf("%+v beside %+v", b, a)
		}
		for j := range half {
			c, d := s.Processors[j], s.Processors[half+j]
			x, ok := s.Link(a.Name, c.Name)
			y, also := s.Link(a.Name, d.Name)
			if i != j && (ok != also || x.HandoverUS != y.HandoverUS) {
				t.Errorf("from %s: %+v to %s, %+v to %s", a.Name, x, c.Name, y, d.Name)
			}
		}
	}
}
