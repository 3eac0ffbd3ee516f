package executor_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// slowly is a source that takes its time to make parts ready and notes what it was asked for, in order.
type slowly struct {
	*emit.Content
	mu     sync.Mutex
	ready  []executor.Part
	asked  []executor.Part
	before int // parts asked for that had not been made ready
	busy   bool
	took   time.Duration
}

func (s *slowly) Ahead(ctx context.Context, parts []executor.Part) {
	s.mu.Lock()
	s.busy = true
	s.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(s.took):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, parts...)
	s.busy = false
}

func (s *slowly) Range(name string, offset, bytes int64) ([]byte, error) {
	s.mu.Lock()
	p := executor.Part{Blob: name, Offset: offset, Bytes: bytes}
	if s.asked = append(s.asked, p); s.busy || !slices.ContainsFunc(s.ready, func(r executor.Part) bool { r.Few = false; return r == p }) {
		s.before++
	}
	s.mu.Unlock()
	return s.Content.Range(name, offset, bytes)
}

// Everything a program reads is made ready before it is asked for; what all prefills read while the prompt is still
// looked for; nothing twice.
func TestPartsAreMadeReadyAhead(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	p := batchPlan(t, m, []planir.Proc{proc("a", a, "")}, []int{1, 16, 32}, nil, 40, op.A8TQ8C, bySingle)
	for _, foresee := range []bool{false, true} {
		c, err := emit.NewContent(context.Background(), p, m, []driver.Compiler{hostcompiler.New()})
		if err != nil {
			t.Fatal(err)
		}
		src := &slowly{Content: c, took: 10 * time.Millisecond}
		x, err := executor.Open(context.Background(), p, src, executor.Options{Drivers: []driver.Driver{host.New()}, OnDemand: true})
		if err != nil {
			t.Fatal(err)
		}
		if foresee {
			x.Foresee(context.Background())
		}
		if len(src.asked) > 0 || len(x.Loaded()) > 0 {
			t.Errorf("opening asked for %d parts and loaded %q", len(src.asked), x.Loaded())
		}
		if _, err := x.Generate(context.Background(), []int32{1, 2, 3}, 1, &executor.Sampler{}, nil); err != nil {
			t.Fatal(err)
		}
		if got := x.Loaded(); !slices.Equal(got, []string{"prefill@16"}) {
			t.Errorf("loaded %q", got)
		}
		if len(src.asked) == 0 || src.before > 0 {
			t.Errorf("foresee %v: %d of %d parts were not ready when asked for", foresee, src.before, len(src.asked))
		}
		places := map[executor.Part]bool{}
		for _, r := range src.ready {
			if r.Few = false; !foresee && places[r] {
				t.Errorf("part %+v is made ready twice", r)
			}
			places[r] = true
		}
		if len(places) != len(src.asked) {
			t.Errorf("foresee %v: %d parts made ready, %d asked for", foresee, len(places), len(src.asked))
		}
		x.Close()
		c.Close()
	}
}

// Closing waits for what was begun ahead, and ends it: the source can be closed then.
func TestCloseEndsForesight(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	p := batchPlan(t, m, []planir.Proc{proc("a", a, "")}, []int{1, 16}, nil, 40, op.A8TQ8C, bySingle)
	c, err := emit.NewContent(context.Background(), p, m, []driver.Compiler{hostcompiler.New()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	src := &slowly{Content: c, took: time.Hour}
	x, err := executor.Open(context.Background(), p, src, executor.Options{Drivers: []driver.Driver{host.New()}, OnDemand: true})
	if err != nil {
		t.Fatal(err)
	}
	x.Foresee(context.Background())
	x.Close()
	if src.busy || len(src.ready) == 0 {
		t.Errorf("closed while parts are made ready: busy %v, %d parts", src.busy, len(src.ready))
	}
}
