package runcmd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/emit"
	openclcompiler "github.com/hetc/hetc/emit/compile/opencl"
	ortcompiler "github.com/hetc/hetc/emit/compile/ort"
	qnncompiler "github.com/hetc/hetc/emit/compile/qnn"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/opencl"
	"github.com/hetc/hetc/runtime/driver/ort"
	"github.com/hetc/hetc/runtime/driver/qnn"
)

// TestMain also is the processes of Qualcomm's compiler and emulator, which run in one of their own.
func TestMain(m *testing.M) {
	work := map[bool]func() error{}
	work[qnn.Worker(os.Args[1:])] = qnn.Work
	work[qnncompiler.Worker(os.Args[1:])] = func() error { return qnncompiler.Work(".", os.Stdin) }
	if work := work[true]; work != nil {
		if err := work(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	m.Run()
}

// estimator is a driver that estimates scores beside the host.
type estimator struct {
	driver    driver.Driver
	compilers []driver.Compiler // nil: the host's
	kind      string            // of its processor
	options   map[string]string
}

// estimators are all of them, by name.
var estimators = map[string]estimator{
	host.Name:   {host.New(), nil, "cpu", nil},
	ort.Name:    {ort.New(), []driver.Compiler{ortcompiler.New()}, "cpu", nil},
	opencl.Name: {opencl.New(), []driver.Compiler{openclcompiler.New()}, "gpu", nil},
	qnn.Name: {qnn.New(), []driver.Compiler{qnncompiler.New(qnncompiler.Options{})}, "npu",
		map[string]string{"soc_model": "57", "htp_arch": "75", "vtcm_mb": "8"}},
}

// proc is what a plan says of the processor; without it the test is skipped.
func (e *estimator) proc(t *testing.T) planir.Proc {
	t.Helper()
	require.Deps()
	choice := coreProc(t).Select
	switch e.driver.Name() {
	case opencl.Name:
		devices, err := e.driver.Devices(t.Context())
		if len(devices) == 0 {
			require.Skip(t, opencl.Name, err)
		}
		choice = devices[0].Select
	case qnn.Name:
		choice = "emulator"
	}
	opened, err := e.driver.Open(t.Context(), driver.Config{Select: choice, Options: e.options})
	if errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrIncapable) {
		require.Skip(t, e.driver.Name(), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	capabilities := opened.Capabilities()
	if capabilities.OwnMemory { // rule P003
		t.Skipf("%q has memory of its own", choice)
	}
	out := planir.Proc{Name: "other", Kind: e.kind, Driver: e.driver.Name(), Select: choice, Options: e.options,
		Cores: capabilities.Cores, Set: capabilities.Offered()}
	slices.Sort(out.Kinds)
	return out
}

// newSparsePublisher emits a small model with sparse attention, whose scores that driver's processor estimates.
func newSparsePublisher(t *testing.T, e *estimator) *publisher {
	t.Helper()
	model, err := models.Open("../../../testdata/arch/llama-plain")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	digest, err := model.Digest()
	if err != nil {
		t.Fatal(err)
	}
	cal := calibration.Even(calibration.Model{Name: model.Name, Digest: digest}, model.Layers, model.Heads, model.KVHeads, 0.3)
	measured, err := cal.Digest()
	if err != nil {
		t.Fatal(err)
	}
	other, graph := e.proc(t), model.Graph()
	plan := &planir.Plan{Schema: planir.Schema, Model: planir.ModelRef{Name: model.Name, Digest: digest},
		SoC:        planir.SoCRef{Name: "test", Control: "cpu", Fingerprint: host.Fingerprint()},
		Inputs:     []planir.Input{{Kind: planir.CalibrationInput, Digest: measured}},
		Attention:  &planir.Attention{Density: 0.3, Block: 8, Rows: []int{16}},
		MaxContext: 64, KV: op.F32, Procs: []planir.Proc{coreProc(t), other}}
	plan.Decisions, err = lower.TrivialOf(plan, &graph, "cpu", []int{1, 16},
		func(string, int) op.Scheme { return op.A32W32 })
	if err != nil {
		t.Fatal(err)
	}
	for i := range plan.Decisions {
		if strings.HasSuffix(plan.Decisions[i].Node, "_estimate") {
			plan.Decisions[i].Shares[0].Proc = other.Name
		}
	}
	if err := lower.Lower(plan, &graph); err != nil {
		t.Fatal(err)
	}
	if err := planir.Check(plan).Err(); err != nil {
		t.Fatal(err)
	}
	path, trust := emitted(t, emit.Options{Plan: plan, Model: model, Calibration: cal}, func(o *emit.Options) {
		o.Compilers = append(o.Compilers, e.compilers...)
	})
	var tokens []string
	for i := range 40 {
		tokens = append(tokens, fmt.Sprint(3+7*i%80))
	}
	return publish(t, path, trust, strings.Join(tokens, ","), host.New(), e.driver)
}

// refuses signs the bundle with other blobs, which hetrun must refuse with that exit code, for one of these reasons, before
// it generates anything.
func (p *publisher) refuses(what string, blobs map[string][]byte, class diag.Class, reasons ...string) {
	p.t.Helper()
	path := p.sign(blobs)
	generated, err := p.run(path)
	if got := diag.ClassOf(err); got != class || generated != "" {
		p.t.Errorf("%s: class %v, generated %q, %v; want class %v and nothing generated", what, got, generated, err, class)
	} else if !slices.ContainsFunc(reasons, func(reason string) bool { return strings.Contains(err.Error(), reason) }) {
		p.t.Errorf("%s: %v, want one of %q", what, err, reasons)
	}
	if err := os.Remove(path); err != nil {
		p.t.Fatal(err)
	}
}

// What a publisher signs in place of an estimate of scores is refused on every driver, with the reason and the exit code:
// artifacts of another estimate, of none and in parts; scales and shares of heads that make no sense; and plans whose
// attention has numbers out of range.
func TestSparseBundlesRefused(t *testing.T) {
	require.Slow(t)
	for name, e := range estimators {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HETC_CACHE", t.TempDir())
			p := newSparsePublisher(t, &e)
			if generated, err := p.run(p.sign(nil)); err != nil || generated == "" {
				t.Fatalf("signed again without a change: generated %q, %v", generated, err)
			}
			p.refusesArtifacts()
			p.refusesHeads()
			p.refusesPlans()
		})
	}
}

// estimates is the graph of the other processor.
func (p *publisher) estimates() *planir.Graph {
	p.t.Helper()
	graphs := p.plan.Program.Graphs
	i := slices.IndexFunc(graphs, func(graph planir.Graph) bool { return graph.Proc == "other" && graph.Graph.Estimate() != nil })
	if i < 0 {
		p.t.Fatal("the other processor estimates nothing")
	}
	return &graphs[i]
}

// refusesArtifacts changes the artifacts of estimates.
func (p *publisher) refusesArtifacts() {
	p.t.Helper()
	graph := p.estimates()
	operator := graph.Graph.Estimate()
	artifact := ""
	for _, blob := range p.Manifest().Blobs {
		if artifact == "" && (blob.Name == graph.Artifact || strings.HasPrefix(blob.Name, graph.Artifact+".")) {
			artifact = blob.Name
		}
	}
	if artifact == "" {
		p.t.Fatalf("no blob is of artifact %q", graph.Artifact)
	}
	good := p.blob(artifact)
	changed := func(from, to string) []byte {
		if !bytes.Contains(good, []byte(from)) {
			p.t.Errorf("the artifact does not say %s", from)
		}
		return bytes.Replace(good, []byte(from), []byte(to), 1)
	}
	for what, code := range map[string][]byte{
		"another cache": changed(`"kv":"f32"`, `"kv":"f16"`), "another block": changed(`"block":8`, `"block":9`),
	} {
		p.refuses(what, map[string][]byte{artifact: code}, diag.ClassVerify, "another graph than the plan")
	}
	// What is no graph at all is not compared with the plan's by every driver.
	unreadable := func(what string, code []byte) {
		p.t.Helper()
		class, reasons := diag.ClassRun, []string{"load artifact on"}
		if p.plan.Proc("other").Driver == host.Name {
			class, reasons = diag.ClassVerify, []string{"another graph than the plan"}
		}
		p.refuses(what, map[string][]byte{artifact: code}, class, reasons...)
	}
	unreadable("no artifact", nil)
	unreadable("half an artifact", good[:len(good)/2])
	if p.plan.Proc("other").Driver != host.Name {
		for i := range p.plan.Program.Graphs {
			if other := &p.plan.Program.Graphs[i]; other.Proc == "cpu" && other.Graph.Nodes[0].Op.Kind == op.Select {
				unreadable("a selection of the host", p.blob(other.Artifact))
			}
		}
	}
	for key, value := range map[string]int{"m": operator.M, "heads": operator.Heads, "kv_heads": operator.KVHeads,
		"head_dim": operator.HeadDim, "context": operator.Context} {
		unreadable("another "+key, changed(fmt.Sprintf("%q:%d", key, value), fmt.Sprintf("%q:%d", key, value+1)))
	}
	if at := bytes.Index(good, []byte("[0.05,")); p.plan.Proc("other").WeightsInArtifacts {
		zero := bytes.Clone(good)
		copy(zero[max(0, at):], "[0.00,")
		p.refuses("a scale of zero in the artifact", map[string][]byte{artifact: zero}, diag.ClassRun, "scale of queries is 0")
	}
}

// refusesHeads changes the weights that say how the heads of a layer are rounded and what they keep.
func (p *publisher) refusesHeads() {
	p.t.Helper()
	estimate := p.estimates().Graph.Estimate()
	for _, blob := range p.plan.Program.WeightBlobs() {
		at := slices.IndexFunc(blob.Packs, func(at planir.Placement) bool {
			return at.Layer == 1 && strings.Contains(at.Pack.Weight, "heads")
		})
		if at < 0 {
			continue
		}
		for what, change := range map[string]struct {
			number int // of a head's three
			value  float64
		}{
			"scale of queries is NaN":     {0, math.NaN()},
			"scale of queries is 0":       {0, 0},
			"scale of keys is -0.05":      {1, -0.05},
			"scale of keys is +Inf":       {1, math.Inf(1)},
			"share of positions is -0.25": {2, -0.25},
			"share of positions is NaN":   {2, math.NaN()},
		} {
			data := bytes.Clone(p.blob(blob.Name))
			last := 3*(estimate.Heads-1) + change.number
			binary.LittleEndian.PutUint32(data[blob.Packs[at].Offset+int64(4*last):], math.Float32bits(float32(change.value)))
			p.refuses(what, map[string][]byte{blob.Name: data}, diag.ClassRun, what)
		}
		return
	}
	p.t.Error("no weight says what heads keep")
}

// refusesPlans changes the numbers of the plan.
func (p *publisher) refusesPlans() {
	p.t.Helper()
	for what, change := range map[string]func(plan *planir.Plan){
		"more than all positions":     func(plan *planir.Plan) { plan.Attention.Density = 1.5 },
		"no positions":                func(plan *planir.Plan) { plan.Attention.Density = 0 },
		"fewer than no positions":     func(plan *planir.Plan) { plan.Attention.Density = -0.1 },
		"blocks of nothing":           func(plan *planir.Plan) { plan.Attention.Block = 0 },
		"a least of any number":       func(plan *planir.Plan) { plan.Attention.Least = 300 },
		"two pairs of scales":         func(plan *planir.Plan) { plan.Attention.Buckets = 2 },
		"buckets that estimates lack": func(plan *planir.Plan) { plan.Attention.Buckets = 9 },
		"more than all heads":         func(plan *planir.Plan) { plan.Attention.Estimated = 2 },
		"rows that no program has":    func(plan *planir.Plan) { plan.Attention.Rows = []int{16, 17} },
		"nothing about attention":     func(plan *planir.Plan) { plan.Attention = nil },
		"a pipeline of no such heads": func(plan *planir.Plan) {
			plan.Attention.Pipelines = []planir.HeadPipeline{{Node: "layers.attention", Rows: 16, By: planir.ByExact,
				Launches: []int{0, 9}, Turns: []int{0}, Densities: []float64{0.3}}}
		},
	} {
		plan := p.decoded()
		change(plan)
		code, err := planir.Encode(plan)
		if err != nil {
			p.t.Fatalf("%s: %v", what, err)
		}
		// A density is also that of the weights of heads (P002).
		p.refuses(what, map[string][]byte{p.Manifest().Entrypoint: code}, diag.ClassIllegal, "P002", "P030", "P032")
	}
}
