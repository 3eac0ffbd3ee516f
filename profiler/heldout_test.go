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
	model, err := models.Open("tinyllama-1.1b")
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	w := Want{Buckets: []int{64, 512}}
	requests, err := Requests(soc, model, w)
	if err != nil {
		t.Fatal(err)
	}
	held, err := HeldOut(soc, model, w, requests, 30, 7)
	if err != nil {
		t.Fatal(err)
	}
	if len(held) != 30 {
		t.Fatalf("got %d, want 30", len(held))
	}
	again, _ := HeldOut(soc, model, w, requests, 30, 7)
	shapes := map[[2]int]bool{}
	for i, request := range held {
		if request.Key() != again[i].Key() {
			t.Errorf("same seed, other request %q and %q", request.Key(), again[i].Key())
		}
		operator := request.What.Op
		shapes[[2]int{operator.K, operator.N}] = true
		for _, r := range requests {
			if r.Key() == request.Key() {
				t.Errorf("%q is sampled too", request.Key())
			}
			if q := r.What.Op; r.What.Kind == "op" && q.Kind == operator.Kind && r.What.Proc == request.What.Proc &&
				q.Scheme == operator.Scheme && q.K == operator.K && q.N == operator.N &&
				len(r.What.Concurrent) == 0 && math.Abs(float64(q.M-operator.M)) <= 0.05*float64(q.M) {
				t.Errorf("%q lies within 5 %% of the sampled %q", request.Key(), r.Key())
			}
		}
	}
	if len(shapes) < 3 {
		t.Errorf("only %d weight shapes among %d", len(shapes), len(held))
	}
}
