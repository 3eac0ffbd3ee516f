package profiler

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"

	compilehost "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
)

// TestHostIsMeasured measures one operator of each kind and scheme, a pair and everything around on this
// machine's real processors. Their times are not compared with anything.
func TestHostIsMeasured(t *testing.T) {
	require.Slow(t)
	soc := probeHost(t)
	p := soc.Processors[0].Name
	requests := everyKind()
	for i := range requests {
		requests[i].What.Proc = p
		if requests[i].What.Cold {
			requests[i].What.Footprint = 1 << 20
		}
	}
	last := soc.Processors[len(soc.Processors)-1].Name
	gated := ask(p, matmul(3), 0)
	gated.What.GLU = &op.Op{Kind: op.GLU, M: 3, N: 48, Interleave: 16, Act: op.SiLU}
	requests = append(requests, ask(last, matmul(7), 0), gated,
		Request{What: record.Measurement{Kind: record.Bandwidth, Proc: p, Bytes: 1 << 20, Unit: "ns"}},
		Request{What: record.Measurement{Kind: record.Load, Proc: p, Op: matmul(5), Layout: "n32", Unit: "ns"}})
	for _, pair := range concurrentPairs(soc) {
		request := ask(pair[0], matmul(1), 0)
		request.What.Concurrent = []record.Partner{{Proc: pair[1], Op: matmul(1), Layout: "n32", Cold: true}}
		requests = append(requests, request,
			Request{What: record.Measurement{Kind: record.Sync, Proc: pair[0], To: pair[1], Unit: "ns"}},
			Request{What: record.Measurement{Kind: record.Copy, Proc: pair[0], To: pair[1], Bytes: 4096, Unit: "ns"}})
	}
	h, err := Header(soc, soc.Fingerprint, "best", "test", 1)
	if err != nil {
		t.Fatal(err)
	}
	writer, err := record.Create(t.TempDir()+"/r.jsonl", h)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	rep, err := Run(context.Background(), soc, requests, writer, Options{
		Drivers:   map[string]driver.Driver{"host": host.New()},
		Compilers: map[string]driver.Compiler{"host": compilehost.New()},
		Rule:      stat.Rule{Min: 5, Max: 6, Within: 0.02}, window: time.Millisecond, memory: 8 << 20, Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Measured != len(requests) {
		t.Errorf("measured %d of %d, refused %v, left %v", rep.Measured, len(requests), rep.Refused, rep.Left)
	}
}

func simulate(t *testing.T, seed uint64) *record.Set {
	t.Helper()
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	m := openModel(t, "llama-3-8b")
	requests, err := Requests(soc, m, Want{Buckets: []int{256}, Schemes: []op.Scheme{op.A8TQ4B32}})
	if err != nil {
		t.Fatal(err)
	}
	h, err := Header(soc, "", "", "test", seed)
	if err != nil || !h.Simulated || h.Fingerprint != "" {
		t.Fatalf("header %+v, %v", h, err)
	}
	writer, err := record.Create(t.TempDir()+"/r.jsonl", h)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	rep, err := Run(context.Background(), soc, requests, writer, Options{
		Drivers:   map[string]driver.Driver{"sim": sim.New(soc)},
		Compilers: map[string]driver.Compiler{"sim": sim.NewCompiler(soc)}, Seed: seed,
	})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Measured+len(rep.Refused) != len(requests) || rep.Measured < len(requests)*3/4 {
		t.Errorf("measured %d of %d, refused %v", rep.Measured, len(requests), rep.Refused)
	}
	for _, r := range rep.Refused {
		if !strings.Contains(r.Err.Error(), "cannot be compiled") && !strings.Contains(r.Err.Error(), "it has not") {
			t.Errorf("refused %s: %v", r.Key, r.Err)
		}
	}
	return writer.Set()
}

func TestSim(t *testing.T) {
	require.Slow(t)
	set := simulate(t, 1)
	slower := 0
	for _, measured := range set.All() {
		if !measured.Simulated || len(measured.Samples) < 3 {
			t.Fatalf("%s: simulated %v, %d samples", measured.Key(), measured.Simulated, len(measured.Samples))
		}
		if measured.Kind == record.Op && len(measured.Concurrent) > 0 {
			x := *measured
			x.Concurrent = nil
			if alone := set.Lookup(x.Key()); alone != nil &&
				stat.Median(measured.Samples) > 1.05*stat.Median(alone.Samples) {
				slower++
			}
		}
	}
	if slower == 0 {
		t.Error("nobody is slower beside another processor, though they share the memory")
	}
	a, _ := set.Digest()
	if b, _ := simulate(t, 1).Digest(); a != b {
		t.Error("the same seed simulates another record")
	}
}

// The host measures every part of a sparse attention: scales are positive, and positions are ones that may be selected.
func TestSparsePartsAreMeasured(t *testing.T) {
	require.Slow(t)
	soc := probeHost(t)
	var requests []Request
	for _, operator := range []op.Op{
		{Kind: op.Estimate, M: 40, Heads: 4, KVHeads: 2, HeadDim: 8, KV: op.F16, Context: 100, Block: 16},
		{Kind: op.Select, M: 40, Heads: 4, KVHeads: 2, Context: 100, Block: 16},
		{Kind: op.SparseAttend, M: 40, Heads: 4, KVHeads: 2, HeadDim: 8, KV: op.F16, Context: 100, Block: 16,
			Density: 0.3},
		{Kind: op.SparseAttend, M: 1, Heads: 4, KVHeads: 2, HeadDim: 8, KV: op.F16, Context: 100, Block: 16,
			Density: 0.3},
		{Kind: op.SparseAttend, M: 40, Heads: 4, KVHeads: 2, HeadDim: 8, KV: op.Q8, Context: 100, Block: 16, Density: 1,
			Window: 30},
	} {
		requests = append(requests,
			Request{What: record.Measurement{Kind: record.Op, Proc: soc.Processors[0].Name, Op: &operator,
				Cold: operator.Kind.ReadsCache(), Unit: "ns"}})
	}
	header, err := Header(soc, soc.Fingerprint, "best", "test", 1)
	if err != nil {
		t.Fatal(err)
	}
	writer, err := record.Create(t.TempDir()+"/r.jsonl", header)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	report, err := Run(context.Background(), soc, requests, writer, Options{
		Drivers:   map[string]driver.Driver{"host": host.New()},
		Compilers: map[string]driver.Compiler{"host": compilehost.New()},
		Rule:      stat.Rule{Min: 5, Max: 6, Within: 0.02}, window: time.Millisecond, memory: 8 << 20, Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if report.Measured != len(requests) {
		t.Errorf("measured %d of %d, refused %v", report.Measured, len(requests), report.Refused)
	}
}
