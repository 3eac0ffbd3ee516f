package op

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestFormsOf(t *testing.T) {
	if got, want := FormsOf(12, FormClasses), []Form{Swapped, BatchMatMul, "conv 1x12", "conv 2x6", "conv 3x4",
		"conv 4x3", "conv 6x2", "conv 12x1"}; !slices.Equal(got, want) {
		t.Errorf("forms of 12 rows: got %q, want %q", got, want)
	}
	if got := FormsOf(1, FormClasses); !slices.Equal(got, []Form{Swapped, BatchMatMul}) {
		t.Errorf("forms of one row: got %q", got)
	}
	// llm.npu sec. 4 has 1024 rows: every power of two is a width.
	if got := FormsOf(1024, []Form{Conv}); len(got) != 11 || !slices.Contains(got, "conv 32x32") {
		t.Errorf("factorisations of 1024 rows: got %q", got)
	}
	if got := FormsOf(64, nil); got != nil {
		t.Errorf("forms without classes: got %q", got)
	}
	for m, want := range map[int]Form{
		1: "conv 1x1", 7: "conv 7x1", 12: "conv 4x3", 36: "conv 6x6", 128: "conv 16x8", 1024: "conv 32x32",
	} {
		if got := Squarest(m); got != want {
			t.Errorf("squarest of %d rows: got %q, want %q", m, got, want)
		}
	}
}

// Every form that is listed is valid, once, and the divisors are complete.
func TestFormsOfProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.IntRange(1, 3000).Draw(t, "m")
		forms := FormsOf(m, FormClasses)
		seen := map[Form]bool{}
		for _, form := range forms {
			operator := Op{Kind: MatMul, M: m, K: 8, N: 8, Scheme: A32W32, Form: form}
			if err := operator.Validate(); err != nil || seen[form] {
				t.Fatalf("form %q of %d rows: seen %v, %v", form, m, seen[form], err)
			}
			seen[form] = true
			if !strings.HasSuffix(operator.Key(), " "+string(form)) {
				t.Fatalf("key %q does not name form %q", operator.Key(), form)
			}
		}
		for w := 1; w <= m && m > 1; w++ {
			if want := m%w == 0; want && !seen[ConvForm(w, m/w)] {
				t.Fatalf("width %d of %d rows is not listed", w, m)
			}
		}
		w, h, ok := Squarest(m).Image()
		if !ok || w*h != m || w < h || slices.ContainsFunc(forms, func(f Form) bool {
			a, b, ok := f.Image()
			return ok && max(a, b) < w
		}) {
			t.Fatalf("squarest of %d rows: %dx%d", m, w, h)
		}
	})
}

func TestFormIsRefused(t *testing.T) {
	for _, form := range []Form{
		"conv", "conv 0x0", "conv 4x4", "conv -2x-4", "conv 08x1", "conv 8x1 ", "conv  8x1", "conv 8X1",
		"conv 99999999999999999999x1", "conv 16777217x1", "fc", " ", "bmm 2x4", "Swapped",
	} {
		o := Op{Kind: MatMul, M: 8, K: 8, N: 8, Scheme: A32W32, Form: form}
		if err := o.Validate(); err == nil {
			t.Errorf("form %q of 8 rows is accepted", form)
		}
	}
	for _, operator := range []Op{
		{Kind: ExpertMatMul, M: 8, K: 8, N: 8, Experts: 4, Fan: 2, Scheme: A32W32, Form: Swapped},
		{Kind: Add, M: 8, N: 8, Form: Swapped},
	} {
		if err := operator.Validate(); err == nil || !strings.Contains(err.Error(), "form") {
			t.Errorf("%s with a form: got %v", operator.Kind, err)
		}
	}
}

// What was written before there were forms stays what it was.
func TestDefaultFormIsSilent(t *testing.T) {
	operator := Op{Kind: MatMul, M: 8, K: 16, N: 32, Scheme: A8TQ8C}
	text, err := json.Marshal(operator)
	if err != nil || strings.Contains(string(text), "form") || operator.Key() != "matmul[8,16]x[16,32] a8t/q8c" {
		t.Errorf("got %s, key %q, %v", text, operator.Key(), err)
	}
	if f := Form("conv 4x2"); f.Class() != Conv || Form("").Class() != "" || Swapped.Class() != Swapped {
		t.Errorf("class of %q is %q", f, f.Class())
	}
}

// A variant of kernels is a class of its own. Names are words of small letters and digits with hyphens in between.
func TestKernelForms(t *testing.T) {
	product := Op{Kind: MatMul, M: 1, K: 8, N: 8, Scheme: A32W32}
	for _, name := range []string{"tiles", "columns-dot", "2", "a-1-b"} {
		form := KernelForm(name)
		product.Form = form
		if err := product.Validate(); err != nil || form.Kernel() != name || form.Class() != form || !form.IsClass() {
			t.Errorf("form %q: variant %q, class %q, %v", form, form.Kernel(), form.Class(), err)
		}
	}
	for _, form := range []Form{"kernel", "kernel ", "kernel -a", "kernel a-", "kernel a--b", "kernel A", "kernel a b",
		"kernel \u00e4", KernelForm(strings.Repeat("a", 49)), "kernels a"} {
		product.Form = form
		if err := product.Validate(); err == nil || form.Kernel() != "" || form.IsClass() {
			t.Errorf("form %q is accepted", form)
		}
	}
	got := FormsOf(2, []Form{KernelForm("b"), Swapped, KernelForm("a")})
	if want := []Form{Swapped, "kernel b", "kernel a"}; !slices.Equal(got, want) {
		t.Errorf("forms: got %q, want %q", got, want)
	}
	for _, operator := range []Op{
		{Kind: Add, M: 8, N: 8}, {Kind: ExpertMatMul, M: 8, K: 8, N: 8, Experts: 4, Fan: 2, Scheme: A32W32},
	} {
		operator.Form = KernelForm("tiles")
		if err := operator.Validate(); err == nil {
			t.Errorf("%s by named kernels is accepted", operator.Kind)
		}
	}
}
