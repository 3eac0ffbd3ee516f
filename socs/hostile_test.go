package socs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
)

const small = `schema: hetc.soc/1
name: x
control: a
processors:
  - name: a
    kind: cpu
    driver: sim
    select: a
    bandwidth_gbps: 10
    tile: {m: 1, k: 32, n: 32}
    schemes: [a32/w32]
    layouts: {w32: n32}
    kv: [f32]
    sim: {schemes: {a32/w32: {peak_gops: 100}}, other_gops: 10}
`

// full has every key; it is far smaller than a catalog entry, which a fuzzer would spend its time shortening.
const full = `schema: hetc.soc/1
name: y
description: d
fingerprint: f
os: linux
arch: arm64
control: a
cpu: {model: m, cores: 2, features: [x], caches: [{name: l2, level: 2, bytes: 1024, cores: [0, 1]}]}
processors:
  - {name: a, kind: cpu, description: d, driver: host, select: "0", options: {k: v}, cores: [0], tile: {n: 32}, schemes: [a32/w32], layouts: {w32: n32}, kv: [f32, f16], dynamic_rows: true, strided_output: true, strided_input: true, weight_ranges: true}
  - name: b
    kind: npu
    driver: sim
    select: b
    peak_gops: {i8: 9.5}
    bandwidth_gbps: 10
    launch_us: 1
    compile_ms: 2
    power_w: 3
    tile: {m: 1, k: 2, n: 4}
    kinds: [matmul, copy]
    schemes: [a8t/q8c]
    layouts: {q8c: n32}
    static_shapes: true
    single_queue: true
    graph_bytes: 1
    address_bytes: 2
    max_graphs: 3
    weight_bytes: per_graph
    sim: {schemes: {a8t/q8c: {peak_gops: 5, weight_bits: 4, setup_us: 6, step: {m: 7}, long_k: 8, long_k_from: 9}}, other_gops: 1, noise_cv: 0.1, infeasible: [{min_m: 1, max_k: 2}]}
memory: [{name: m, bytes: 5, processors: [a, b]}]
links: [{from: a, to: b, handover_us: 1, copy_gbps: 2, copy_launch_us: 3}]
joint: [{processors: [a, b], bandwidth_gbps: 11}]
points: [{processor: b, scheme: a8t/q8c, m: 1, k: 32, n: 4, latency_us: 5, source: "paper: p"}]
facts: [{name: f, value: -1.5, source: "vendor: v"}]
sources: {processors.b: "assumed: a", links.a>b: "measured: m", joint.a+b: "derived: d"}
`

// refused checks that an error is the user's to correct and short enough to read.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		if err != nil && len(err.Error()) > 300 {
			err = errors.New(err.Error()[:300])
		}
		t.Fatalf("got %v, want %q", err, want)
	}
	if c := diag.ClassOf(err); c != diag.ClassInput {
		t.Errorf("class %d of %v", c, err)
	}
	if n := len(err.Error()); n > 128<<10 {
		t.Errorf("a message of %d bytes", n)
	}
}

func TestHostileFiles(t *testing.T) {
	require.Slow(t)
	for _, text := range []string{small, full} {
		if _, err := Parse("x.yaml", []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	repeat := func(n int, format string) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, format, i)
		}
		return text.String()
	}
	in := func(old, new string) string {
		if !strings.Contains(small, old) {
			t.Fatalf("no %q to replace", old)
		}
		return strings.Replace(small, old, new, 1)
	}
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", "document is empty"},
		{"truncated", small[:len(small)/2], "x.yaml"},
		{"not utf-8", "schema: hetc.soc/1\nname: \"\xff\"\n", "UTF-8"},
		{"nan", in("bandwidth_gbps: 10", "bandwidth_gbps: .nan"), "want a finite number"},
		{"inf", in("bandwidth_gbps: 10", "bandwidth_gbps: .inf"), "want a finite number"},
		{"overflow", in("bandwidth_gbps: 10", "bandwidth_gbps: 1e400"), "want a finite number"},
		{"huge", in("bandwidth_gbps: 10", "bandwidth_gbps: 1e300"), "processors.a.bandwidth_gbps"},
		{"negative", in("bandwidth_gbps: 10", "bandwidth_gbps: -10"), "processors.a.bandwidth_gbps"},
		{"tiny", in("peak_gops: 100", "peak_gops: 5e-324"), "sim.schemes.a32/w32.peak_gops"},
		{"negative launch", in("bandwidth_gbps: 10", "bandwidth_gbps: 10\n    launch_us: -0.5"),
			"processors.a.launch_us"},
		{"tile beyond int", in("n: 32}", "n: 9223372036854775808}"), "whole number"},
		{"huge tile", in("n: 32}", "n: 9223372036854775807}"), "processors.a.tile.n"},
		{"bytes beyond int", small + "memory: [{name: m, bytes: 99999999999999999999, processors: [a]}]\n",
			"whole number"},
		{"too many bytes", small + "memory: [{name: m, bytes: 9223372036854775807, processors: [a]}]\n",
			"memory.m.bytes"},
		{"fraction of a byte", small + "memory: [{name: m, bytes: 0.5, processors: [a]}]\n", "whole number"},
		{"processor twice", small + strings.SplitN(small, "processors:\n", 2)[1], `processor "a" is described twice`},
		{"key twice", small + "name: y\n", "name"},
		{"unknown key", small + "procesors: []\n", "unknown key"},
		{"wrong kind", small + "links: 5\n", "want a list"},
		{"long inherit", "schema: hetc.soc/1\nname: x\ninherit: " + strings.Repeat("a", 1<<18) + "\n",
			"a name of 262144 bytes"},
		{"two documents", small + "---\n" + small, "document"},
		{"path as name", in("name: x", "name: ../../etc/passwd"), "lower case letters"},
		{"long name", in("name: a", "name: "+strings.Repeat("a", 1<<18)), "lower case letters"},
		{"long words", in("kind: cpu", "kind: "+strings.Repeat("b", 1<<18)), "want cpu, gpu or npu"},
		{"long scheme", in("schemes: [a32/w32]", "schemes: ["+strings.Repeat("b", 1<<18)+"]"), "parse scheme"},
		{"too large", small + "# " + strings.Repeat("x", 1<<19), "more than 524288 bytes"},
		{"deep", small + "sources: " + strings.Repeat("[", 50000) + strings.Repeat("]", 50000), "x.yaml"},
		{"aliases", "schema: hetc.soc/1\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c " +
			"[*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\n" +
			"e: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f]\nh: " +
			"[*g,*g,*g,*g,*g,*g,*g,*g]\n", "x.yaml"},
		{"many processors", "schema: hetc.soc/1\nname: x\ncontrol: a\nprocessors:\n" + repeat(4000,
			"  - {name: p%d, kind: cpu, driver: host, tile: {}, schemes: [], layouts: {}}\n"),
			"4000 processors, want 1..64"},
		{"many domains", small + "memory:\n" + repeat(9000, "  - {name: m%d, bytes: 1, processors: [a]}\n"),
			"9000 memory domains"},
		{"many strangers", small + "memory: [{name: m, bytes: 1, processors: [" + repeat(60000, "p%d,") + "]}]\n",
			`processor "p0" does not exist`},
		{"many links", small + "links:\n" + repeat(9000, "  - {from: a, to: p%d, handover_us: 1}\n"),
			`processor "p0" does not exist`},
		{"many joints", small + "joint:\n" + repeat(8000, "  - {processors: [a, p%d], bandwidth_gbps: 1}\n"),
			"8000 joint bandwidths"},
		{"many sources", small + "sources:\n" + repeat(14000, "  p%d: \"paper: nowhere\"\n"), `no value at path "p0"`},
		{"many facts", small + "facts:\n" + repeat(9000, "  - {name: f%d, value: 1, source: a}\n"), "facts.f0.source"},
		{"many points", small + "points:\n" +
			repeat(5000, "  - {processor: p%d, scheme: a32/w32, m: 1, k: 1, n: 1, latency_us: 1, source: a}\n"),
			"points.0"},
		{"many cores", in("    kind: cpu", "    kind: cpu\n    cores: ["+repeat(60000, "%d,")+"]"), "core 4096"},
		{"many ranges", in("other_gops: 10}", "other_gops: 10, infeasible: ["+repeat(20000, "{min_m: %d},")+"]}"),
			"20000 ranges"},
		{"many schemes", in("schemes: [a32/w32]", "schemes: ["+repeat(50000, "b%d,")+"]"), "parse scheme"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse("x.yaml", []byte(test.text))
			refused(t, err, test.want)
		})
	}
}

// The largest legal description is checked at once.
func TestLargestSoC(t *testing.T) {
	var text strings.Builder
	text.WriteString("schema: hetc.soc/1\nname: x\ncontrol: p0\nprocessors:\n")
	core := 0
	var all []string
	for i := range maxProcessors {
		all = append(all, fmt.Sprintf("p%d", i))
		fmt.Fprintf(&text, "  - {name: p%d, kind: cpu, driver: host, tile: {}, schemes: [a32/w32], layouts: {w32: "+
			"n32}, kv: [f32], cores: [", i)
		for range maxCores / maxProcessors {
			fmt.Fprintf(&text, "%d,", core)
			core++
		}
		text.WriteString("]}\n")
	}
	text.WriteString("joint:\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "  - {processors: [%s], bandwidth_gbps: 1}\n", strings.Join(all[i%32:], ","))
	}
	_, err := Parse("x.yaml", []byte(text.String()))
	refused(t, err, "joint bandwidth is described twice")
	soc, err := Parse("x.yaml", []byte(text.String()[:strings.Index(text.String(), "joint:")]))
	if err != nil {
		t.Fatal(err)
	}
	if err := soc.Concurrent(all...); err != nil {
		t.Error(err)
	}
}

func TestInheritPaths(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "socs")
	put := func(path, text string) {
		t.Helper()
		path = filepath.Join(top, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	child := func(from string) string { return "schema: hetc.soc/1\nname: child\ninherit: " + from + "\n" }
	put("outside.yaml", small)
	put("socs/base.yaml", small)
	put("socs/below/base.yaml", small)
	put("socs/below/up.yaml", child("../base.yaml"))
	put("socs/one.yaml", child("two.yaml"))
	put("socs/two.yaml", child("./below/../three.yaml"))
	put("socs/three.yaml", child("one.yaml"))
	put("socs/huge.yaml", small+"# "+strings.Repeat("x", 1<<19))
	put("socs/text.yaml", "root:x:0:0:root:/root:/bin/sh\n")
	for i := range 12 {
		put(fmt.Sprintf("socs/deep%d.yaml", i), child(fmt.Sprintf("deep%d.yaml", i+1)))
	}
	put("socs/deep12.yaml", small)
	for link, target := range map[string]string{
		"out.yaml": "../outside.yaml", "in.yaml": "base.yaml", "self.yaml": "self.yaml", "again.yaml": "mirror.yaml",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	put("socs/mirror.yaml", child("again.yaml"))
	for _, test := range []struct{ from, want string }{
		{"base.yaml", ""},
		{"./base.yaml", ""},
		{"below/base.yaml", ""},
		{"below/../base.yaml", ""},
		{"in.yaml", ""},
		{"../outside.yaml", "leaves the directory"},
		{"below/../../outside.yaml", "leaves the directory"},
		{filepath.Join(dir, "base.yaml"), "leaves the directory"},
		{"/etc/passwd", "leaves the directory"},
		{"~/base.yaml", "neither a file nor a catalog name"},
		{"out.yaml", "escapes"},
		{"self.yaml", "self.yaml"},
		{"below/up.yaml", "leaves the directory"},
		{"below", "not a regular file"},
		{"huge.yaml", "more than 524288 bytes"},
		{"text.yaml", "text.yaml:1"},
		{"missing.yaml", "neither a file nor a catalog name"},
		{"redmi-k7-pro", "neither a file nor a catalog name"},
		{"catalog/../redmi-k70-pro", "neither a file nor a catalog name"},
		{"one.yaml", "inherits from itself"},
		{"mirror.yaml", "inherits from itself"},
		{"child.yaml", "inherits from itself"},
		{"deep0.yaml", "inherits through more than 8 files"},
		{"deep5.yaml", ""},
		{"\"base.yaml\\0\"", "child.yaml"},
		{"[base.yaml]", "child.yaml:3"},
	} {
		t.Run(test.from, func(t *testing.T) {
			put("socs/child.yaml", child(test.from))
			soc, err := Open(filepath.Join(dir, "child.yaml"))
			if test.want == "" {
				if err != nil || soc.Name != "child" || soc.Processor("a") == nil || soc.Inherit != "" {
					t.Errorf("got %+v, %v", soc, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	put("socs/child.yaml", child("redmi-k7-pro"))
	_, err := Open(filepath.Join(dir, "child.yaml"))
	if h := diag.HintsOf(err); !errors.Is(err, fs.ErrNotExist) || len(h) != 1 ||
		!strings.HasPrefix(h[0], `did you mean "redmi-k70-pro"?`) {
		t.Errorf("got %v, hint %q", err, h)
	}
}

// A source speaks of the value its own file states, not of what replaces it.
func TestInheritedSources(t *testing.T) {
	const base = small + `facts:
  - {name: peak_tops, value: 5, source: "paper: A"}
sources:
  processors: "paper: A"
  processors.a.sim.schemes: "paper: B"
  processors.a.tile.n: "assumed: C"
`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "base.yaml"), []byte(base), 0o644); err != nil {
		t.Fatal(err)
	}
	open := func(text string) *SoC {
		t.Helper()
		path := filepath.Join(dir, "child.yaml")
		if err := os.WriteFile(path, []byte("schema: hetc.soc/1\nname: child\ninherit: base.yaml\n"+text),
			0o644); err != nil {
			t.Fatal(err)
		}
		soc, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return soc
	}
	const bare = "assumed: replaces an inherited value without a source"
	for _, test := range []struct {
		name, text string
		want       map[string]string
	}{
		{"nothing changed", "", map[string]string{
			"processors.a.bandwidth_gbps": "paper: A", "processors.a.sim.schemes.a32/w32.peak_gops": "paper: B",
			"processors.a.tile.n": "assumed: C", "facts.peak_tops": "paper: A"}},
		{"changed without a source",
			"processors: [{name: a, bandwidth_gbps: 11, sim: {schemes: {a32/w32: {peak_gops: 7}}}}]\n",
			map[string]string{
				"processors.a.bandwidth_gbps": bare, "processors.a.sim.schemes.a32/w32.peak_gops": bare,
				"processors.a.sim.other_gops": "paper: A", "processors.a.tile.n": "assumed: C"}},
		{"stated again", "processors: [{name: a, bandwidth_gbps: 10.0}]\n",
			map[string]string{"processors.a.bandwidth_gbps": "paper: A"}},
		{"added without a source", "processors: [{name: a, power_w: 3}]\n",
			map[string]string{"processors.a.power_w": bare}},
		{"a broad source", "processors: [{name: a, sim: {schemes: {a32/w32: {peak_gops: 7}}}}]\nsources: " +
			"{processors: \"measured: here\"}\n", map[string]string{
			"processors.a.sim.schemes.a32/w32.peak_gops": "measured: here", "processors.a.bandwidth_gbps": "paper: A",
			"processors.a.tile.k": "paper: A", "processors.a.tile.n": "assumed: C"}},
		{"a narrow source", "sources: {processors.a.bandwidth_gbps: \"measured: here\"}\n", map[string]string{
			"processors.a.bandwidth_gbps": "measured: here", "processors.a.tile.k": "paper: A"}},
		{"a new fact", "facts: [{name: peak_tops, value: 6, source: \"vendor: D\"}]\n",
			map[string]string{"facts.peak_tops": "vendor: D"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := map[string]string{}
			for _, x := range open(test.text).Numbers() {
				got[x.Path] = x.Kind + ": " + x.Text
			}
			for path, want := range test.want {
				if got[path] != want {
					t.Errorf("%s: got %q, want %q", path, got[path], want)
				}
			}
		})
	}
	// A fact that loses its source is no fact.
	path := filepath.Join(dir, "child.yaml")
	if err := os.WriteFile(path,
		[]byte("schema: hetc.soc/1\nname: child\ninherit: base.yaml\nfacts: [{name: peak_tops, value: 6}]\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Open(path)
	refused(t, err, "facts.peak_tops.source")
}

// FuzzSoC: what is accepted holds its own rules and reads back the same.
func FuzzSoC(f *testing.F) {
	for _, text := range []string{
		small,
		full,
		"schema: hetc.soc/1\nname: x\ninherit: apple-m2-ultra\n",
		"schema: hetc.soc/1\nname: x\ninherit: redmi-k70-pro\nprocessors: [{name: npu, launch_us: 3}]\nlinks: " +
			"[{from: npu, to: gpu, handover_us: 1}]\nsources: {links: \"measured: x\"}\n",
		"schema: hetc.soc/1\nname: x\ninherit: xiaomi-14\njoint: [{processors: [npu, gpu], bandwidth_gbps: " +
			"1}]\npoints: []\nfacts: [{name: chunk_tokens, value: 2, source: \"derived: x\"}]\n",
		"schema: hetc.soc/1\nname: x\ninherit: fuzz.yaml\n",
		"schema: hetc.soc/1\nname: x\ninherit: ../socs/catalog/xiaomi-14.yaml\n",
		"schema: hetc.soc/1\nprocessors: [{name: a, sim: {schemes: {a32/w32: {peak_gops: .nan}}}}]\n",
		`{"schema": "hetc.soc/1", "name": "x", "control": "a", "processors": [{"name": "a", "kind": "cpu", "driver": "host", "cores": [0]}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		soc, err := Parse("fuzz.yaml", data)
		if err != nil {
			if diag.ClassOf(err) != diag.ClassInput && diag.ClassOf(err) != diag.ClassIO {
				t.Fatalf("class %d of %v", diag.ClassOf(err), err)
			}
			return
		}
		if err := soc.Validate(); err != nil {
			t.Fatalf("accepted, then refused: %v", err)
		}
		if n := soc.Numbers(); len(n) < len(soc.Facts)+len(soc.Points) || len(soc.Assumptions()) > len(n) {
			t.Fatalf("%d numbers", len(n))
		}
		want, err := soc.Digest()
		if err != nil {
			t.Fatal(err)
		}
		text, err := decode.YAML(soc)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("again.yaml", text)
		if err != nil {
			t.Fatalf("written and not read: %v\n%s", err, text)
		}
		if got, _ := again.Digest(); got != want {
			t.Fatalf("written and read differently:\n%s", text)
		}
	})
}
