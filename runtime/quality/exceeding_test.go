package quality

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/executor"
)

// For every number of rows the counts are those of the definition: of each call, the channels beyond the limit in any row.
func TestExceeding(t *testing.T) {
	const rows, channels, windows = 20, 9, 5
	rng := rand.New(rand.NewPCG(4, 2))
	limits := make([]float32, channels)
	for i := range limits {
		limits[i] = float32(1 + i%3)
	}
	graph := op.Single(op.Op{Kind: op.MatMul, M: rows, K: channels, N: 2, Scheme: op.A32W32}, "n32")
	counting := Exceeding{Limits: func(class string, layer int) []float32 {
		if class != "layers.up" || layer != 1 {
			return nil
		}
		return limits
	}}
	var all [][]float32
	for range windows {
		values := make([]float32, rows*channels)
		for i := range values {
			values[i] = float32(rng.NormFloat64())
		}
		all = append(all, values)
		for layer := range 2 {
			counting.Observe(executor.Observed{Node: "layers.up", Layer: layer, Graph: &graph, Rows: rows,
				In: []driver.View{{Buffer: buffer(mem.Bytes(values)), Type: op.F32, Rows: rows, Cols: channels, Stride: channels}}})
		}
	}
	got, err := counting.Counts()
	if err != nil || len(got) != 1 || got[0].Class != "layers.up" || got[0].Layer != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
	often := make([]int, channels)
	var sizes []int
	for _, count := range got[0].Counts {
		sizes = append(sizes, count.Rows)
		sum, most, calls := 0, 0, 0
		for _, values := range all {
			for from := 0; from+count.Rows <= rows; from += count.Rows {
				beyond := 0
				for channel := range channels {
					is := false
					for row := from; row < from+count.Rows; row++ {
						is = is || math.Abs(float64(values[row*channels+channel])) > float64(limits[channel])
					}
					if is {
						beyond++
						if count.Rows == rows {
							often[channel]++
						}
					}
				}
				sum, most, calls = sum+beyond, max(most, beyond), calls+1
			}
		}
		if count.Mean != float64(sum)/float64(calls) || count.Most != most {
			t.Errorf("%+v, want a mean of %v and at most %d", count, float64(sum)/float64(calls), most)
		}
	}
	if !slices.Equal(sizes, []int{1, 4, 16, 20}) {
		t.Errorf("counted at %v rows, want 1, 4, 16, 20", sizes)
	}
	for i, hot := range got[0].Hot {
		if want := float64(often[hot.Channel]) / windows; hot.Share != want || i > 0 && hot.Share > got[0].Hot[i-1].Share {
			t.Errorf("hot %d: %+v, want the share %v and descending shares", i, hot, want)
		}
	}
	if distinct := len(slices.DeleteFunc(slices.Clone(often), func(calls int) bool { return calls == 0 })); got[0].Distinct != distinct {
		t.Errorf("%d channels exceeded the scale in some call, want %d", got[0].Distinct, distinct)
	}
	cal := calibration.Calibration{Exceeding: got}
	// Hot channels are the fewest that have four fifths of what was counted.
	hot, others, ok := cal.HotChannels("layers.up", 1)
	total, sum, least := 0, 0, windows
	for _, calls := range often {
		total += calls
	}
	for _, channel := range hot {
		sum, least = sum+often[channel], min(least, often[channel])
	}
	if !ok || len(hot)+others != got[0].Distinct || 5*sum < 4*total || 5*(sum-least) >= 4*total || !slices.IsSorted(hot) {
		t.Errorf("hot channels %v with %d of %d, %d others, of %v", hot, sum, total, others, often)
	}
	if _, _, ok := cal.HotChannels("layers.up", 0); ok {
		t.Error("hot channels of a layer that was not counted")
	}
	for want, at := range map[int]int{got[0].Counts[0].Most: 1, got[0].Counts[1].Most: 2, got[0].Counts[3].Most: 1000} {
		if most, ok := cal.MostExceeding("layers.up", at); !ok || most != want {
			t.Errorf("at %d rows: %d, %v, want %d", at, most, ok, want)
		}
	}
	if _, ok := cal.MostExceeding("layers.down", 1); ok {
		t.Error("a class that was not counted has a number")
	}
}
