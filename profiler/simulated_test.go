package profiler

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
)

// The record of a simulated SoC is the same however slow this machine is: a busy one cut noisy
// operators short.
func TestSimulatedRecordNeedsNoClock(t *testing.T) {
	s, err := socs.Open("apple-m2-ultra")
	if err != nil {
		t.Fatal(err)
	}
	m, err := models.Open("../testdata/arch/llama-plain")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	requests, err := Requests(s, m, Want{Buckets: []int{16}, MaxContext: 64})
	if err != nil {
		t.Fatal(err)
	}
	header, err := Header(s, "", "", "test", 1)
	if err != nil {
		t.Fatal(err)
	}
	var records [][]byte
	for _, step := range []time.Duration{0, maxTime} { // a call of the clock takes
		path := filepath.Join(t.TempDir(), "rec.jsonl")
		w, err := record.Create(path, header)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(0, 0)
		d := sim.New(s)
		o := Options{
			Drivers:   map[string]driver.Driver{d.Name(): d},
			Compilers: map[string]driver.Compiler{"host": hostcompiler.New(), d.Name(): sim.NewCompiler(s)},
			Seed:      1,
			now:       func() time.Time { now = now.Add(step); return now },
		}
		if _, err := Run(context.Background(), s, requests, w, o); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
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
