package profiler

import (
	"math"
	"testing"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/socs"
)

func TestHeldOutStaysAwayFromSamples(t *testing.T) {
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	m, err := models.Open("tinyllama-1.1b")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	w := Want{Buckets: []int{64, 512}}
	requests, err := Requests(soc, m, w)
	if err != nil {
		t.Fatal(err)
	}
	held, err := HeldOut(soc, m, w, requests, 30, 7)
	if err != nil {
		t.Fatal(err)
	}
	if len(held) != 30 {
		t.Fatalf("got %d, want 30", len(held))
	}
	again, _ := HeldOut(soc, m, w, requests, 30, 7)
	shapes := map[[2]int]bool{}
	for i, h := range held {
		if h.Key() != again[i].Key() {
			t.Errorf("same seed, other request %q and %q", h.Key(), again[i].Key())
		}
		o := h.What.Op
		shapes[[2]int{o.K, o.N}] = true
		for _, r := range requests {
			if r.Key() == h.Key() {
				t.Errorf("%q is sampled too", h.Key())
			}
			if q := r.What.Op; r.What.Kind == "op" && q.Kind == o.Kind && r.What.Proc == h.What.Proc && q.Scheme == o.Scheme && q.K == o.K && q.N == o.N &&
				len(r.What.Concurrent) == 0 && math.Abs(float64(q.M-o.M)) <= 0.05*float64(q.M) {
				t.Errorf("%q lies within 5 %% of the sampled %q", h.Key(), r.Key())
			}
		}
	}
	if len(shapes) < 3 {
		t.Errorf("only %d weight shapes among %d", len(shapes), len(held))
	}
}
