package profiler

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
)

// The record of a simulated SoC is the same however slow this machine is: a busy one cut noisy
// operators short.
func TestSimulatedRecordNeedsNoClock(t *testing.T) {
	soc, err := socs.Open("apple-m2-ultra")
	if err != nil {
		t.Fatal(err)
	}
	model, err := models.Open("../testdata/arch/llama-plain")
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	requests, err := Requests(soc, model, Want{Buckets: []int{16}, MaxContext: 64})
	if err != nil {
		t.Fatal(err)
	}
	header, err := Header(soc, "", "", "test", 1)
	if err != nil {
		t.Fatal(err)
	}
	var records [][]byte
	for _, step := range []time.Duration{0, maxTime} { // a call of the clock takes
		path := filepath.Join(t.TempDir(), "rec.jsonl")
		writer, err := record.Create(path, header)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(0, 0)
		d := sim.New(soc)
		options := Options{
			Drivers:   map[string]driver.Driver{d.Name(): d},
			Compilers: map[string]driver.Compiler{"host": hostcompiler.New(), d.Name(): sim.NewCompiler(soc)},
			Seed:      1,
			now:       func() time.Time { now = now.Add(step); return now },
		}
		if _, err := Run(context.Background(), soc, requests, writer, options); err != nil {
			t.Fatal(err)
		}
		if err := writer.Close(); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, data)
	}
	if !bytes.Equal(records[0], records[1]) {
		t.Errorf("the records differ, %d and %d bytes", len(records[0]), len(records[1]))
	}
}

// simulated is the requests for a small model on a simulated SoC, and a way to run them.
type simulated struct {
	soc      *socs.SoC
	requests []Request
	header   record.Header
}

// simulatedPhone is a SoC of three processors with what a small model needs of them.
func simulatedPhone(t *testing.T, change func(s *socs.SoC)) *simulated {
	t.Helper()
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	change(soc)
	model, err := models.Open("../testdata/arch/llama-plain")
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	out := &simulated{soc: soc}
	if out.requests, err = Requests(soc, model, Want{Buckets: []int{16}, MaxContext: 64}); err != nil {
		t.Fatal(err)
	}
	if out.header, err = Header(soc, "", "", "test", 1); err != nil {
		t.Fatal(err)
	}
	return out
}

// run goes on with a record until it is complete or so many measurements are made; 0: all.
func (s *simulated) run(t *testing.T, path string, most int) *record.Set {
	t.Helper()
	writer, err := record.Resume(path, s.header)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	count := 0
	d := sim.New(s.soc)
	_, err = Run(ctx, s.soc, s.requests, writer, Options{
		Drivers:   map[string]driver.Driver{d.Name(): d},
		Compilers: map[string]driver.Compiler{"host": hostcompiler.New(), d.Name(): sim.NewCompiler(s.soc)},
		Seed:      1, Budget: time.Hour,
		Progress: func(p Progress) {
			if p.Ended {
				count++
			}
			if most > 0 && count == most {
				cancel()
			}
		},
	})
	if err != nil && most == 0 {
		t.Fatal(err)
	}
	return writer.Set()
}

// TestSimulatedResume breaks a run off again and again: the record has the same samples and flags as that of one run.
func TestSimulatedResume(t *testing.T) {
	phone := simulatedPhone(t, func(soc *socs.SoC) {
		for i := range soc.Processors {
			soc.Processors[i].Sim.NoiseCV = 0.1 // so that some are flagged
		}
	})
	// Operators beside others share their graphs with those alone.
	phone.requests = slices.DeleteFunc(phone.requests, func(r Request) bool {
		return r.What.Op == nil || r.What.Op.Kind != op.MatMul || r.What.Op.M > 1
	})
	dir := t.TempDir()
	whole := phone.run(t, filepath.Join(dir, "whole.jsonl"), 0)
	pieces := filepath.Join(dir, "pieces.jsonl")
	for range 3 {
		phone.run(t, pieces, whole.Len()/4)
	}
	resumed := phone.run(t, pieces, 0)
	if whole.Len() != resumed.Len() || whole.Len() != len(phone.requests) {
		t.Fatalf("%d measurements, and %d after interruptions, of %d", whole.Len(), resumed.Len(), len(phone.requests))
	}
	flagged, differ := 0, 0
	for i := range phone.requests {
		key := phone.requests[i].Key()
		one, other := whole.Lookup(key), resumed.Lookup(key)
		if len(one.Warnings) > 0 {
			flagged++
		}
		if !slices.Equal(one.Samples, other.Samples) || !slices.Equal(one.Warnings, other.Warnings) {
			if differ++; differ < 4 {
				t.Errorf("%s: %v %v, and after interruptions %v %v", key, one.Warnings, one.Samples, other.Warnings,
					other.Samples)
			}
		}
	}
	t.Logf("%d of %d are flagged", flagged, whole.Len())
	if differ > 0 || flagged == 0 {
		t.Errorf("%d of %d differ, %d are flagged; want none that differs and some that are flagged", differ,
			whole.Len(),
			flagged)
	}
}

// TestSimulatedAbsurdLaunch measures a processor that takes a quarter of an hour to launch anything, also beside
// others.
func TestSimulatedAbsurdLaunch(t *testing.T) {
	phone := simulatedPhone(t, func(soc *socs.SoC) {
		soc.Processor("npu").LaunchUS = 1e9
		if err := soc.Validate(); err != nil {
			t.Fatal(err)
		}
	})
	began := time.Now()
	set := phone.run(t, filepath.Join(t.TempDir(), "rec.jsonl"), 0)
	beside := 0
	for i := range phone.requests {
		what := &phone.requests[i].What
		if what.Proc == "npu" && len(what.Concurrent) > 0 && what.Concurrent[0].Op != nil && set.Has(what.Key()) {
			beside++
		}
	}
	if took := time.Since(began); beside == 0 || took > time.Minute {
		t.Errorf("%v for %d measurements of the processor beside another one", took, beside)
	}
}
