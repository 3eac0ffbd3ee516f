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
func TestFewCopiesWhereLoadingCopies(t *testing.T) {
	for _, test := range []struct {
		prepacks, company bool
		want              int
	}{{true, false, fewCopies}, {true, true, someCopies}, {false, false, 151}} {
		driver := &fake{cost: func(string, op.Op, int) float64 { return 20_000 }, prepacks: test.prepacks,
			loaded: map[string]int{}, weights: map[string]bool{}}
		soc := fakeSoC()
		rec, _ := newRecord(t, soc)
		request := ask("a", matmul(4), 0)
		request.What.Footprint = 1 << 20
		if test.company {
			driver.readers = map[*byte]string{} // what one has read, the other would find in a cache
			request.What.Concurrent = []record.Partner{{Proc: "b", Op: matmul(2), Layout: request.What.Layout,
				Cold: true}}
		}
		options := driver.options()
		options.Rounds = 1
		if _, err := Run(context.Background(), soc, []Request{request}, rec, options); err != nil {
			t.Fatal(err)
		}
		if got := driver.loaded[matmul(4).Key()]; got != test.want {
			t.Errorf("prepacks %v, company %v: %d executables, want %d", test.prepacks, test.company, got, test.want)
		}
		if n := len(driver.weights); test.prepacks && !test.company && n != fewCopies {
			t.Errorf("%d different weights, want %d", n, fewCopies)
		}
		for _, x := range rec.Set().All() {
			for _, ns := range x.Samples {
				if ns < 19_000 || ns > 22_000 {
					t.Errorf("prepacks %v: a sample of %v ns of an operator of 20000", test.prepacks, ns)
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
func TestFurtherDriversShareWhatCoresReach(t *testing.T) {
	require.Slow(t)
	soc, err := Probe(context.Background(), host.New(), ProbeOptions{Fingerprint: host.Fingerprint(),
		Others: []driver.Driver{renamed{host.New()}}, memory: 16 << 20, window: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	half := len(soc.Processors) / 2
	for i := range half {
		proc, b := soc.Processors[i], soc.Processors[half+i]
		if b.Driver != "again" || b.Name != "again:"+b.Select || proc.Select != b.Select ||
			proc.BandwidthGBps != b.BandwidthGBps || soc.Concurrent(proc.Name, b.Name) == nil {
			t.Errorf("%+v beside %+v", b, proc)
		}
		for j := range half {
			c, d := soc.Processors[j], soc.Processors[half+j]
			x, ok := soc.Link(proc.Name, c.Name)
			y, also := soc.Link(proc.Name, d.Name)
			if i != j && (ok != also || x.HandoverUS != y.HandoverUS) {
				t.Errorf("from %s: %+v to %s, %+v to %s", proc.Name, x, c.Name, y, d.Name)
			}
		}
	}
}
