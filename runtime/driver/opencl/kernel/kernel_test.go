package kernel

import (
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// Every scheme that the table of schemes gives to the driver has kernels, and every variant a source, which differs
// from those of the other variants.
func TestTable(t *testing.T) {
	for _, scheme := range op.SchemesOf("opencl") {
		if Variants("matmul "+string(scheme)) == nil {
			t.Errorf("scheme %q has no kernels", scheme)
		}
	}
	for _, family := range Names() {
		seen := map[string]string{}
		for _, variant := range Variants(family) {
			name := family
			if file := find(family).file; file == "attention.cl" || file == "estimate.cl" {
				name += ":64"
			}
			source, err := Source(name, &variant, variant.Rows)
			if err != nil {
				t.Fatal(err)
			}
			if other, same := seen[source]; same && variant.Items == 0 && family[:4] != "atte" {
				t.Errorf("variants %q and %q of %q are the same", other, variant.Name, family)
			}
			seen[source] = variant.Name
		}
		last := Variants(family)[len(Variants(family))-1]
		if last.Lacks(&Features{}) != "" {
			t.Errorf("the last variant of %q, %q, needs something", family, last.Name)
		}
	}
}

// An artifact names what it is to have, or carries all variants, of which the first that suits the device is taken.
func TestChoose(t *testing.T) {
	graph := op.Single(op.Op{Kind: op.MatMul, M: 4, K: 64, N: 64, Scheme: op.A8TQ8C}, op.TilesLayout)
	const family = "matmul a8t/q8c"
	all, err := Compile(graph, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	one, err := Compile(graph, func(string) string { return "columns" })
	if err != nil {
		t.Fatal(err)
	}
	cpu, gpu := &Features{MaxGroup: 4096}, &Features{MaxGroup: 1024, Dedicated: true}
	dot := &Features{MaxGroup: 256, Dedicated: true, IntegerDot: true}
	for _, c := range []struct {
		code *Code
		f    *Features
		want string
	}{{all, cpu, "tiles"}, {all, gpu, "columns"}, {all, dot, "columns-dot"}, {one, cpu, "columns"}, {one, dot, "columns"},
		{all, &Features{MaxGroup: 1, Dedicated: true}, "tiles"}} {
		got, err := c.code.Choose(family, c.f)
		if err != nil || got.Name != c.want {
			t.Errorf("%+v: got %q (%v), want %q", c.f, got.Name, err, c.want)
		}
	}
	if _, err := one.Choose(family, &Features{MaxGroup: 64}); err == nil {
		t.Error("a device without large groups was given kernels that need them")
	}
	if _, err := Compile(graph, func(string) string { return "fast" }); err == nil {
		t.Error("an unknown variant was compiled")
	}
}

// A product's form names its variant: the artifact carries that one alone, and what others need beside it.
func TestNamed(t *testing.T) {
	product := op.Op{Kind: op.MatMul, M: 4, K: 64, N: 64, Scheme: op.A16FW16, Form: op.KernelForm("tiles")}
	graph := op.Single(product, op.TilesLayout)
	carried := func(choose string) (list []string) {
		t.Helper()
		code, err := Compile(graph, func(string) string { return choose })
		if err != nil {
			t.Fatal(err)
		}
		for _, program := range code.Programs {
			if program.Family == "matmul a16f/w16" {
				list = append(list, program.Variant)
			}
		}
		return slices.Compact(list)
	}
	// The kernels that round activations before it have variants of other names, and are chosen as without the form.
	for _, name := range []string{"tiles", "columns"} {
		graph.Nodes[0].Op.Form = op.KernelForm(name)
		if got := carried(""); !slices.Equal(got, []string{name}) {
			t.Errorf("got the variants %q, want %q, which the form names", got, name)
		}
	}

	// Beside a product without a form the artifact carries all variants, once.
	plain := graph.Nodes[0]
	plain.Op.Form, plain.Out = "", []string{"second"}
	graph.Nodes = append(graph.Nodes, plain)
	if got := carried(""); !slices.Equal(got, []string{"columns", "columns-image", "tiles"}) {
		t.Errorf("got the variants %q, want all", got)
	}

	graph.Nodes[0].Op.Form = op.KernelForm("fast")
	_, err := Compile(graph, func(string) string { return "" })
	if err == nil || !strings.Contains(err.Error(), `no variant "fast"`) ||
		!slices.Contains(diag.HintsOf(err), "variants: columns, columns-image, tiles") {
		t.Errorf("an unknown variant: got %v, hints %q", err, diag.HintsOf(err))
	}
}

// FuzzParse reads anything as an artifact: what is accepted is encoded to the same bytes.
func FuzzParse(f *testing.F) {
	graph := op.Single(op.Op{Kind: op.Add, M: 4, N: 64}, "")
	code, err := Compile(graph, func(string) string { return "" })
	if err != nil {
		f.Fatal(err)
	}
	data, err := code.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		code, err := Parse(data)
		if err != nil {
			return
		}
		again, err := code.Encode()
		if err != nil || string(again) != string(data) {
			t.Errorf("%q is accepted and encoded as %q (%v)", data, again, err)
		}
	})
}
