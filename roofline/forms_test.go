package roofline

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver/sim"
)

// Forms are kept apart: each is predicted from its own samples, images of other numbers of rows tell nothing of one,
// and what was measured in the default form alone is no candidate in another.
func TestForms(t *testing.T) {
	soc := openSoC(t, "snapdragon-8gen3")
	costs, set := formCosts(t)
	for _, measured := range set.All() {
		operator := *measured.Op
		want, err := sim.NS(soc, "npu", operator)
		if err != nil {
			t.Fatal(err)
		}
		predicted, err := costs.Op("npu", operator, false)
		if err != nil || predicted.NS != want || predicted.Source != source.Measured {
			t.Errorf("%s: %+v, %v, want %d ns as measured", operator.Key(), predicted, err, want)
		}
	}

	got := costs.Forms("npu", matmul(64, 4096, 2048, op.A8TQ8C))
	if len(got) != 7 || !slices.Contains(got, "conv 8x8") {
		t.Errorf("images of 64 rows: %q", got)
	}
	if got := costs.Forms("npu", matmul(32, 4096, 2048, op.A8TQ8C)); got != nil {
		t.Errorf("images of 32 rows, which were not measured: %q", got)
	}
	if got := costs.Forms("npu", matmul(96, 4096, 2048, op.A8TQ4B32)); !slices.Equal(got, []op.Form{op.Swapped}) {
		t.Errorf("orders of 96 rows: %q", got)
	}
	for _, proc := range []string{"gpu", "npu"} {
		if got := costs.Forms(proc, matmul(64, 4096, 2048, op.A32W32)); got != nil {
			t.Errorf("forms of what was never measured on %q: %q", proc, got)
		}
	}

	// Between measured numbers of rows an order follows its own samples, not those of the default.
	product := matmul(192, 4096, 28672, op.A8TQ4B32)
	plain, err := costs.Op("npu", product, false)
	if err != nil {
		t.Fatal(err)
	}
	product.Form = op.Swapped
	swapped, err := costs.Op("npu", product, false)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := sim.NS(soc, "npu", product)
	off := float64(swapped.NS)/float64(want) - 1
	if off > 0.05 || off < -0.05 || swapped.NS >= plain.NS {
		t.Errorf("%s: predicted %d ns, the simulation takes %d, the default form %d", product.Key(), swapped.NS, want,
			plain.NS)
	}
}

// formCosts returns costs that were fitted, written and read, and what was measured: products in each form that the NPU
// has, but for images of 32 rows.
func formCosts(t *testing.T) (*Costs, *record.Set) {
	t.Helper()
	soc := openSoC(t, "snapdragon-8gen3")
	set := record.NewSet(header(t, soc))
	measure := func(operator op.Op) {
		ns, err := sim.NS(soc, "npu", operator)
		if err != nil {
			t.Fatal(err)
		}
		add(t, set, record.Measurement{Kind: record.Op, Proc: "npu", Op: &operator, Layout: "n32",
			Samples: []float64{float64(ns)}})
	}
	for _, shape := range shapes {
		for _, rows := range []int{32, 64, 128, 256} {
			for _, scheme := range []op.Scheme{op.A8TQ4B32, op.A8TQ8C} {
				operator := matmul(rows, shape[0], shape[1], scheme)
				measure(operator)
				for _, form := range op.FormsOf(rows, soc.Processor("npu").Forms[scheme]) {
					if rows == 32 && form.Class() == op.Conv {
						continue
					}
					operator.Form = form
					measure(operator)
				}
			}
		}
	}

	fitted, err := Fit(soc, set)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "costs.yaml")
	if err := Write(path, fitted); err != nil {
		t.Fatal(err)
	}
	costs, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return costs, set
}

// A form that was measured with a static scale prices products of every scheme that takes the same time.
func TestFormsOfAlikeSchemes(t *testing.T) {
	soc := openSoC(t, "snapdragon-8gen3")
	set := record.NewSet(header(t, soc))
	for _, shape := range shapes {
		for _, form := range []op.Form{"", "conv 8x8"} {
			product := matmul(64, shape[0], shape[1], op.A8TQ8C)
			ns := float64(shape[0] * shape[1])
			if form != "" {
				product.Scheme, product.Form = op.A8SQ8C, form
				ns /= 2
			}
			add(t, set, record.Measurement{Kind: record.Op, Proc: "npu", Op: &product, Layout: "n32",
				Samples: []float64{ns}})
		}
	}
	costs, err := Fit(soc, set)
	if err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []op.Scheme{op.A8SQ8C, op.A8OQ8C} {
		product := matmul(64, shapes[0][0], shapes[0][1], scheme)
		if got := costs.Forms("npu", product); !slices.Equal(got, []op.Form{"conv 8x8"}) {
			t.Errorf("%s: forms %q", scheme, got)
		}
		plain, err1 := costs.Op("npu", product, false)
		product.Form = "conv 8x8"
		formed, err2 := costs.Op("npu", product, false)
		if err1 != nil || err2 != nil || plain.NS != 2*formed.NS || formed.Source != source.Measured {
			t.Errorf("%s: %+v (%v), in the form %+v (%v)", scheme, plain, err1, formed, err2)
		}
	}
}
