package socs

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/hetc/hetc/internal/require"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

func TestCatalog(t *testing.T) {
	names := Catalog()
	if len(names) < 3 {
		t.Fatalf("catalog has %v, want at least 3", names)
	}
	for _, name := range names {
		soc, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if soc.Name != name {
			t.Errorf("%s: named %q", name, soc.Name)
		}
		if !soc.Simulated() {
			t.Errorf("%s: not simulated", name)
		}
		for _, x := range soc.Numbers() {
			if x.Kind == "" || strings.Contains(unsourced, x.Text) {
				t.Errorf("%s: %s = %s has no source", name, x.Path, x.Value)
			}
		}
		if len(soc.Assumptions()) == 0 {
			t.Errorf("%s: no assumption is marked", name)
		}
		for i := range soc.Processors {
			for j := range soc.Processors {
				a, b := soc.Processors[i].Name, soc.Processors[j].Name
				if _, ok := soc.Link(a, b); !ok {
					t.Errorf("%s: no link from %s to %s", name, a, b)
				}
				if i < j {
					if _, ok := soc.JointGBps(b, a); !ok {
						t.Errorf("%s: no joint bandwidth of %s and %s", name, a, b)
					}
				}
			}
		}
	}
}

// The phones are their SoC in everything but name, memory and what was measured on them.
func TestCatalogPhones(t *testing.T) {
	for _, test := range []struct {
		phone, soc string
		gib        int64
	}{
		{"redmi-k60-pro", "snapdragon-8gen2", 16},
		{"redmi-k60-champion", "snapdragon-8gen2", 16},
		{"redmi-k70-pro", "snapdragon-8gen3", 24},
		{"xiaomi-14", "snapdragon-8gen3", 16},
	} {
		phone, err := Open(test.phone)
		if err != nil {
			t.Fatal(err)
		}
		soc, err := Open(test.soc)
		if err != nil {
			t.Fatal(err)
		}
		if len(phone.Memory) != 1 || phone.Memory[0].Bytes != test.gib<<30 {
			t.Errorf("%s: memory %+v, want %d GiB", test.phone, phone.Memory, test.gib)
		}
		if phone.Description == soc.Description || len(phone.Facts) <= len(soc.Facts) {
			t.Errorf("%s: says nothing of its own", test.phone)
		}
		for _, f := range soc.Facts {
			if !slices.Contains(phone.Facts, f) {
				t.Errorf("%s: fact %q of %s is lost or changed", test.phone, f.Name, test.soc)
			}
		}
		const place = "memory.dram.bytes"
		if phone.Sources[place] == soc.Sources[place] {
			t.Errorf("%s: memory from %q, the source of %s", test.phone, phone.Sources[place], test.soc)
		}
		phone.Name, phone.Description, phone.Facts = soc.Name, soc.Description, soc.Facts
		phone.Memory[0].Bytes, phone.Sources[place] = soc.Memory[0].Bytes, soc.Sources[place]
		if !reflect.DeepEqual(phone, soc) {
			t.Errorf("%s: differs from %s in more than it should", test.phone, test.soc)
		}
	}
}

// Sources that derive a SoC from another one say true: each factor is found again, to two digits.
func TestCatalogDerived(t *testing.T) {
	for _, test := range []struct {
		name, from    string
		cpu, gpu, npu float64 // rates over those of from
		bandwidth     float64
	}{
		{"snapdragon-8gen2", "snapdragon-8gen3", 1 / 1.3, 1 / 1.25, 1 / 1.2, 67.2 / 68},
		{"snapdragon-8-elite", "snapdragon-8gen3", 1.45, 1.105, 1.105, 1},
		{"apple-m2-max", "apple-m2-ultra", 0.5, 0.5, 0.5, 0.5},
	} {
		soc, err := Open(test.name)
		if err != nil {
			t.Fatal(err)
		}
		from, err := Open(test.from)
		if err != nil {
			t.Fatal(err)
		}
		near := func(what string, got, want float64) {
			if math.Abs(got-want) > 0.03*want {
				t.Errorf("%s: %s is %v, want %.4g", test.name, what, got, want)
			}
		}
		for name, x := range map[string]float64{"cpu": test.cpu, "gpu": test.gpu, "npu": test.npu} {
			proc, q := soc.Processor(name), from.Processor(name)
			near(name+" bandwidth", proc.BandwidthGBps, test.bandwidth*q.BandwidthGBps)
			near(name+" other", proc.Sim.OtherGops, x*q.Sim.OtherGops)
			if len(proc.Sim.Schemes) != len(q.Sim.Schemes) {
				t.Errorf("%s: %s has other schemes than %s", test.name, name, test.from)
			}
			for scheme, r := range proc.Sim.Schemes {
				of := q.Sim.Schemes[scheme]
				near(name+" "+string(scheme), r.PeakGops, x*of.PeakGops)
				near(name+" "+string(scheme)+" setup", r.SetupUS, of.SetupUS)
			}
			if !slices.Equal(proc.Kinds, q.Kinds) {
				t.Errorf("%s: %s executes %v, on %s %v", test.name, name, proc.Kinds, test.from, q.Kinds)
			}
		}
		kinds := map[string]string{}
		for _, x := range from.Numbers() {
			kinds[x.Path] = x.Kind
		}
		for _, x := range soc.Numbers() {
			if x.Kind == "derived" && kinds[x.Path] == "assumed" {
				t.Errorf("%s: %s is derived from what is assumed in %s", test.name, x.Path, test.from)
			}
		}
		for _, j := range from.Joint {
			got, _ := soc.JointGBps(j.Processors...)
			near("joint bandwidth", got, test.bandwidth*j.BandwidthGBps)
		}
	}
}

// docs/soc.md says for every entry where its numbers come from.
func TestCatalogDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/soc.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| name | paper ")
	if rows, want := strings.Count(table, "\n| ")-1, len(Catalog()); rows != want { // less the rule
		t.Errorf("docs/soc.md: table of %d rows, want one for each of %d entries", rows, want)
	}
	for _, name := range Catalog() {
		soc, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		count := map[string]int{}
		for _, x := range soc.Numbers() {
			if !strings.HasPrefix(x.Path, "points.") {
				count[x.Kind]++
			}
		}
		row := fmt.Sprintf("| %s | %d | %d | %d | %d | %d |", name, count["paper"], count["vendor"], count["derived"],
			count["assumed"], len(soc.Points))
		if !strings.Contains(string(text), "\n"+row+"\n") {
			t.Errorf("docs/soc.md lacks the row\n%s", row)
		}
	}
}

func TestOpenUnknown(t *testing.T) {
	all := "the catalog has " + strings.Join(Catalog(), ", ")
	for word, near := range map[string]string{
		"snapdragon-8gn3":        `did you mean "snapdragon-8gen3"? `,
		"snapdragon-8gen":        `did you mean "snapdragon-8gen3" or "snapdragon-8gen2" or "snapdragon-8gen1"? `,
		"8Gen2":                  `did you mean "snapdragon-8gen2"? `,
		"k70":                    `did you mean "redmi-k70-pro"? `,
		"m2":                     `did you mean "apple-m2-ultra" or "apple-m2-max"? `,
		"pixel-9":                "",
		"":                       "",
		"../socs_test":           "",
		"catalog/xiaomi":         "",
		"\x00":                   "-",
		strings.Repeat("a", 200): "",
	} {
		_, err := Open(word)
		if near == "-" { // the system refuses the name
			if err == nil {
				t.Errorf("%q was opened", word)
			}
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%q: got %v", word, err)
		}
		if h := diag.HintsOf(err); len(h) != 1 || h[0] != near+all {
			t.Errorf("%q: hint %q, want %q", word, h, near+all)
		}
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("a directory was opened as a SoC")
	}
	if _, err := Open("catalog/../catalog/xiaomi-14"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a path into the catalog: got %v", err)
	}
}

func TestWriteRoundTrip(t *testing.T) {
	dir := t.TempDir()
	for _, name := range Catalog() {
		soc, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name+".yaml")
		if err := Write(path, soc); err != nil {
			t.Fatal(err)
		}
		first, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		d1, _ := soc.Digest()
		d2, _ := again.Digest()
		if d1 != d2 || len(d1) != 64 {
			t.Errorf("%s: digest %s after writing and reading %s", name, d2, d1)
		}
		if err := Write(path, again); err != nil {
			t.Fatal(err)
		}
		second, _ := os.ReadFile(path)
		if string(first) != string(second) {
			t.Errorf("%s: written differently the second time", name)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("temporary files left: %v", left)
	}
}

func TestWriteRefuses(t *testing.T) {
	soc, _ := Open("snapdragon-8gen3")
	path := filepath.Join(t.TempDir(), "soc.yaml")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	soc.Processors[0].LaunchUS = math.NaN()
	if err := Write(path, soc); err == nil {
		t.Error("NaN was written")
	}
	if b, _ := os.ReadFile(path); string(b) != "old" {
		t.Errorf("a refused write changed the file to %q", b)
	}
	soc, _ = Open("snapdragon-8gen3")
	if err := Write(filepath.Join(t.TempDir(), "no", "soc.yaml"), soc); diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("missing directory: got %v", err)
	}
}

func TestValidate(t *testing.T) {
	cases := []struct {
		name   string
		change func(*SoC)
		want   string
	}{
		{"schema", func(s *SoC) { s.Schema = "hetc.soc/2" }, `schema "hetc.soc/2", want "hetc.soc/1"`},
		{"name", func(s *SoC) { s.Name = "A b" }, `name "A b"`},
		{"no processors", func(s *SoC) { s.Processors = nil }, "0 processors"},
		{"twice", func(s *SoC) { s.Processors[1].Name = "cpu" }, `processor "cpu" is described twice`},
		{"control", func(s *SoC) { s.Control = "dsp" }, `processor "dsp" does not exist, want one of cpu, gpu, npu`},
		{"no control", func(s *SoC) { s.Control = "" }, "no processor owns control steps"},
		{"kind", func(s *SoC) { s.Processors[0].Kind = "tpu" }, `kind "tpu"`},
		{"negative", func(s *SoC) { s.Processors[0].BandwidthGBps = -1 },
			"processors.cpu.bandwidth_gbps: soc.value: -1"},
		{"nan", func(s *SoC) { s.Links[0].HandoverUS = math.NaN() }, "links.cpu>gpu.handover_us: soc.value: NaN"},
		{"inf", func(s *SoC) { s.Joint[0].BandwidthGBps = math.Inf(1) }, "joint.gpu+npu.bandwidth_gbps"},
		{"link", func(s *SoC) { s.Links[0].To = "dsp" }, `links.cpu>dsp.to: soc.value: processor "dsp" does not exist`},
		{"link to itself", func(s *SoC) { s.Links[0].To = "cpu" }, "is linked to itself"},
		{"link twice", func(s *SoC) { s.Links[1] = s.Links[0] }, "is described twice"},
		{"joint of one", func(s *SoC) { s.Joint[0].Processors = []string{"npu"} },
			"joint bandwidth of 1 of the processors, want at least 2"},
		{"joint on one core", func(s *SoC) { s.Processors[2].Cores = []int{3} },
			`processors "cpu" and "npu" share core 3`},
		{"core twice", func(s *SoC) { s.Processors[0].Cores = []int{1, 1} }, "core 1 is listed twice"},
		{"core", func(s *SoC) { s.Processors[0].Cores = []int{-1} }, "core -1"},
		{"cpu without cores", func(s *SoC) { s.Processors[0].Driver, s.Processors[0].Cores = "host", nil },
			"occupies cores, got none"},
		{"scheme", func(s *SoC) { s.Processors[0].Schemes = []op.Scheme{"a9/w9"} }, `parse scheme "a9/w9"`},
		{"layout", func(s *SoC) { delete(s.Processors[0].Layouts, "q8c") }, `no layout for weights "q8c"`},
		{"operator", func(s *SoC) { s.Processors[2].Kinds = []op.Kind{"conv"} }, `unknown operator "conv"`},
		{"cache type", func(s *SoC) { s.Processors[0].KV = []op.Type{"f8"} },
			`cache type "f8", want "f32", "f16", "bf16" or "q8"`},
		{"wait", func(s *SoC) { s.Processors[0].Wait = "evnt" }, `"evnt", want "poll" or "event", or nothing`},
		{"peak rate", func(s *SoC) { s.Processors[0].PeakGops = map[string]float64{"i9": 1} },
			`unknown element type "i9", want "f32"`},
		{"static and dynamic", func(s *SoC) { s.Processors[2].DynamicRows = true }, "exclude each other"},
		{"tile", func(s *SoC) { s.Processors[0].Tile.N = -32 }, "processors.cpu.tile.n: soc.value: -32"},
		{"bytes", func(s *SoC) { s.Memory[0].Bytes = -5 }, "-5 bytes"},
		{"domain", func(s *SoC) { s.Memory[0].Processors = []string{"x"} }, `processor "x" does not exist`},
		{"sim missing", func(s *SoC) { s.Processors[0].Sim = nil }, "needs a sim block"},
		{"sim peak", func(s *SoC) { s.Processors[0].Sim.Schemes["a32/w32"] = SimScheme{} },
			"sim.schemes.a32/w32.peak_gops: soc.value: 0"},
		{"form", func(s *SoC) { s.Processors[2].Forms["a8t/q8c"] = []op.Form{"conv 8x8"} },
			`form "conv 8x8", want "swapped", "bmm" or "conv", or a variant`},
		{"form twice", func(s *SoC) { s.Processors[2].Forms["a8t/q8c"] = []op.Form{"conv", "conv"} },
			`form "conv" is listed twice`},
		{"form of no scheme", func(s *SoC) { s.Processors[2].Forms["a32/w16"] = []op.Form{"conv"} },
			`forms of scheme "a32/w16"`},
		{"form without price", func(s *SoC) { s.Processors[2].Forms["a8t/q8c"] = []op.Form{"conv", "bmm"} },
			`no price of form "bmm"`},
		{"price of no form", func(s *SoC) { s.Processors[2].Sim.Schemes["a8t/q8c"].Forms["fc"] = SimForm{Gain: 2} },
			`form "fc", want`},
		{"image of dynamic rows", func(s *SoC) {
			s.Processors[2].StaticShapes, s.Processors[2].DynamicRows = false,
				true
		}, "calls may have fewer"},
		{"gain", func(s *SoC) {
			s.Processors[2].Sim.Schemes["a8t/q8c"].Forms["conv"] = SimForm{Gain: math.NaN(), Side: 8}
		}, "forms.conv.gain: soc.value: NaN"},
		{"gain and fill", func(s *SoC) {
			s.Processors[2].Sim.Schemes["a32/w32"].Forms["swapped"] = SimForm{Gain: 2,
				FillRows: 8}
		}, "want one of them"},
		{"fill of an image", func(s *SoC) {
			s.Processors[2].Sim.Schemes["a8t/q8c"].Forms["conv"] = SimForm{FillRows: 8, Side: 8, Gain: 1}
		}, "which only form"},
		{"side", func(s *SoC) { s.Processors[2].Sim.Schemes["a8t/q8c"].Forms["conv"] = SimForm{Gain: 2, Side: 1} },
			"forms.conv.side: soc.value: 1"},
		{"side of an order",
			func(s *SoC) { s.Processors[2].Sim.Schemes["a32/w32"].Forms["swapped"] = SimForm{Gain: 2, Side: 8} },
			"which only form"},
		{"target's form", func(s *SoC) {
			s.Processors[2].Target.Forms = map[op.Scheme][]op.Form{
				"a8t/q8c": {"swapped"}}
		}, `form "swapped" of scheme "a8t/q8c" is not among the processor's forms`},
		{"noise", func(s *SoC) { s.Processors[0].Sim.NoiseCV = 3 }, "noise_cv"},
		{"weight bytes", func(s *SoC) { s.Processors[0].WeightBytes = "half" }, "want shared or per_graph"},
		{"source path", func(s *SoC) { s.Sources["processors.dsp"] = "assumed: x" },
			`no value at path "processors.dsp"`},
		{"source kind", func(s *SoC) { s.Sources["processors.npu.tile"] = "I think so" },
			`source "I think so", want one of paper, vendor`},
		{"fact", func(s *SoC) { s.Facts[0].Value = math.Inf(-1) }, "want a finite number"},
		{"point", func(s *SoC) { s.Points[0].Processor = "x" }, `points.0.processor`},
		{"point without time", func(s *SoC) { s.Points[0].LatencyUS = 0 },
			"points.0.latency_us: soc.value: 0, want more"},
		{"scheme twice", func(s *SoC) { p := &s.Processors[0]; p.Schemes = append(p.Schemes, p.Schemes[0]) },
			`scheme "a32/w32" is listed twice`},
		{"cache type twice", func(s *SoC) { p := &s.Processors[0]; p.KV = append(p.KV, p.KV[0]) },
			`cache type "f32" is listed twice`},
		{"domain of one twice", func(s *SoC) { s.Memory[0].Processors = []string{"npu", "npu"} },
			`processor "npu" is named twice`},
		{"joint of one twice", func(s *SoC) { s.Joint[0].Processors = []string{"npu", "npu"} },
			`processor "npu" is named twice`},
		{"too slow to simulate", func(s *SoC) { s.Processors[0].BandwidthGBps = 1e-9 },
			"want a number in 0.001..1e+09"},
		{"infeasible", func(s *SoC) { s.Processors[2].Sim.Infeasible = []ShapeRange{{MaxK: -1}} },
			"sim.infeasible.0: soc.value: -1"},
		{"escape", func(s *SoC) { s.Description = "\x1b[31mred" }, "description: soc.value: character U+001B"},
		{"escape in a source", func(s *SoC) { s.Sources["links"] = "paper: \x07" },
			"sources.links: soc.value: character U+0007"},
		{"long text", func(s *SoC) { s.Processors[0].Description = strings.Repeat("x", 5000) },
			"5000 bytes, want at most 4096"},
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			soc, err := Open("snapdragon-8gen3")
			if err != nil {
				t.Fatal(err)
			}
			test.change(soc)
			err = soc.Validate()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if err != nil && diag.ClassOf(err) != diag.ClassInput {
				t.Errorf("class %d", diag.ClassOf(err))
			}
		})
	}
}

func TestInherit(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("base.yaml", `schema: hetc.soc/1
name: base
inherit: snapdragon-8gen3
processors:
  - {name: npu, launch_us: 99, single_queue: false}
`)
	child := write("child.yaml", `schema: hetc.soc/1
name: child
inherit: base.yaml
processors:
  - name: npu
    power_w: 3
links:
  - {from: npu, to: gpu, handover_us: 400}
joint:
  - {processors: [npu, gpu], bandwidth_gbps: 50}
sources:
  links.npu>gpu: "measured: with clFinish"
`)
	soc, err := Open(child)
	if err != nil {
		t.Fatal(err)
	}
	npu := soc.Processor("npu")
	if soc.Name != "child" || npu.LaunchUS != 99 || npu.PowerW != 3 || npu.SingleQueue || npu.BandwidthGBps != 42.5 ||
		len(soc.Processors) != 3 {
		t.Errorf("got %s %+v", soc.Name, npu)
	}
	if l, _ := soc.Link("npu", "gpu"); l.HandoverUS != 400 || len(soc.Links) != 6 {
		t.Errorf("link %+v of %d", l, len(soc.Links))
	}
	if bw, _ := soc.JointGBps("gpu", "npu"); bw != 50 {
		t.Errorf("joint bandwidth %v", bw)
	}
	if soc.Inherit != "" {
		t.Errorf("inherit %q is left", soc.Inherit)
	}

	for _, test := range []struct{ text, want string }{
		{"schema: hetc.soc/1\nname: x\ninherit: loop.yaml\n", "inherits from itself"},
		{"schema: hetc.soc/1\nname: x\ninherit: snapdragon\n", "neither a file nor a catalog name"},
		{"schema: hetc.soc/1\nname: x\ninherit: base.yaml\ncontrl: cpu\n", "loop.yaml:4"},
		{"schema: hetc.soc/1\nname: x\ninherit: base.yaml\ncontrol: dsp\n", `processor "dsp" does not exist`},
	} {
		path := write("loop.yaml", test.text)
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v, want %q", test.text, err, test.want)
		}
	}
}

func TestConcurrent(t *testing.T) {
	soc, _ := Open("snapdragon-8gen3")
	if err := soc.Concurrent("gpu", "npu", "cpu"); err != nil {
		t.Error(err)
	}
	soc.Processors[1].Cores = []int{5}
	if err := soc.Concurrent("gpu", "cpu"); err == nil || !strings.Contains(err.Error(), "share core 5") {
		t.Errorf("got %v", err)
	}
	if err := soc.Concurrent("gpu", "gpu"); err == nil {
		t.Error("a processor runs beside itself")
	}
	if err := soc.Concurrent("dsp"); err == nil {
		t.Error("an unknown processor runs")
	}
}

// A SoC that validates survives writing and reading, whatever numbers it holds.
func TestRoundTripProperty(t *testing.T) {
	require.Slow(t)
	rapid.Check(t, func(rt *rapid.T) {
		soc, err := Open("apple-m2-ultra")
		if err != nil {
			rt.Fatal(err)
		}
		proc := &soc.Processors[rapid.IntRange(0, 2).Draw(rt, "processor")]
		rate := rapid.Float64Range(minSimRate, 1e6)
		proc.BandwidthGBps = rate.Draw(rt, "bandwidth")
		proc.LaunchUS = rate.Draw(rt, "launch")
		proc.GraphBytes = rapid.Int64Range(1, maxBytes).Draw(rt, "graph bytes")
		proc.Description = rapid.StringOf(rapid.RuneFrom(nil, unicode.L, unicode.N, unicode.P, unicode.S)).Draw(rt,
			"description")
		soc.Links[0].HandoverUS = rate.Draw(rt, "handover")
		want, err := soc.Digest()
		if err != nil {
			rt.Fatal(err)
		}
		file, err := os.CreateTemp("", "soc-*.yaml")
		if err != nil {
			rt.Fatal(err)
		}
		file.Close()
		defer os.Remove(file.Name())
		if err := Write(file.Name(), soc); err != nil {
			rt.Fatal(err)
		}
		again, err := Open(file.Name())
		if err != nil {
			rt.Fatal(err)
		}
		if got, _ := again.Digest(); got != want {
			rt.Fatalf("read back differently: %+v", again.Processors)
		}
	})
}

// Two processors are parts of the smallest one that has all of their cores, if it is like them.
func TestGroupOf(t *testing.T) {
	core := func(name string, peak float64, cores ...int) Processor {
		return Processor{Name: name, Kind: KindCPU, Driver: "host", Cores: cores,
			PeakGops: map[string]float64{"i8": peak}}
	}
	other := core("ort:0-1", 200, 0, 1)
	other.Driver = "ort"
	configured := core("slow", 200, 0, 1)
	configured.Options = map[string]string{"kernels": "portable"}
	soc := SoC{Processors: []Processor{
		core("0", 100, 0), core("1", 90, 1), core("2", 40, 2), core("0-3", 330, 0, 1, 2, 3), core("0-1", 200, 0, 1),
		other,
		configured, core("0-2", 240, 0, 1, 2),
	}}
	for _, test := range []struct{ first, second, want string }{
		{"0", "1", "0-1"}, {"1", "0", "0-1"},
		{"0", "2", ""}, // a little core is no part of what big ones form
		{"0", "0", ""}, {"0", "0-1", "0-2"}, {"0", "ort:0-1", ""}, {"0", "x", ""}, {"0-1", "0-3", ""},
	} {
		if got := soc.GroupOf(test.first, test.second); got != test.want {
			t.Errorf("group of %s and %s: got %q, want %q", test.first, test.second, got, test.want)
		}
	}
	// rates that were measured at other moments do not tell like cores apart
	pair := soc.Processor("0-1")
	pair.PeakGops["i8"] = 400
	if got := soc.GroupOf("0", "1"); got != "0-2" {
		t.Errorf("a pair twice as fast as both cores: got %q, want the next larger group", got)
	}
	pair.LikeCores = true
	if got := soc.GroupOf("0", "1"); got != "0-1" {
		t.Errorf("a group whose cores are alike: got %q, want %q", got, "0-1")
	}
	pair.LikeCores = false
	for i := range soc.Processors {
		soc.Processors[i].Driver, soc.Processors[i].PeakGops = SimDriver, nil
	}
	if got := soc.GroupOf("0", "1"); got != "" {
		t.Errorf("simulated processors of unknown rates: got %q, want none", got)
	}
}
