package profiler

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// grouper makes binaries of the size of their weights and 100 bytes for each graph, and refuses 264 rows.
type grouper struct {
	calls int
	stop  int // the call that is interrupted
}

func (*grouper) Name() string { return "qnn" }

func (*grouper) Compile(context.Context, op.Graph, driver.Weights, driver.Target) (driver.Artifact, error) {
	return driver.Artifact{}, errors.New("not asked for")
}

func (b *grouper) CompileGroup(_ context.Context, group []driver.Piece, t driver.Target) (*driver.CompiledGroup, error) {
	if b.calls++; b.calls == b.stop {
		return nil, context.Canceled
	}
	out := &driver.CompiledGroup{Compiler: "QNN test", Shared: make([]byte, len(group[0].Weights[0].Bytes))}
	for i, p := range group {
		if p.Graph.Rows() == 264 {
			return nil, &driver.Refused{Pieces: []int{i}, Reasons: []error{errors.New("264 rows:\nno")}}
		}
		if !bytes.Equal(p.Weights[0].Bytes, group[0].Weights[0].Bytes) || bytes.Equal(p.Weights[0].Bytes[:1024], p.Weights[0].Bytes[1024:2048]) {
			return nil, errors.New("weights of a group differ, or repeat")
		}
		out.Artifacts = append(out.Artifacts, driver.CompiledArtifact{Artifact: driver.Artifact{Facts: map[string]int64{"bytes": 100, "spill_bytes": int64(p.Graph.Rows()), "vtcm_bytes": 8 << 20, "arch": 75}}})
	}
	return out, nil
}

func TestCompilerFacts(t *testing.T) {
	whole, err := socs.OpenTarget("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	s, err := whole.Restricted()
	if err != nil {
		t.Fatal(err)
	}
	m, err := models.Open("../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	want := Want{Buckets: []int{64, 256}, Schemes: []op.Scheme{op.A32W32, op.A16SQ8C}}
	requests, err := FactRequests(s, m, want, []int{250})
	if err != nil {
		t.Fatal(err)
	}
	var shapes []string
	for _, r := range requests {
		shapes = append(shapes, r.Op.Key())
		rows := []int{1, 64, 250, 256, 264, 288}
		if r.Op.N == 2048 { // the head
			rows = []int{1}
		}
		if r.Proc != "npu" || !slices.Equal(r.Rows, rows) {
			t.Errorf("%s on %s: rows %v, want %v", r.Op.Key(), r.Proc, r.Rows, rows)
		}
	}
	if len(shapes) != 5 || slices.ContainsFunc(shapes, func(x string) bool { return !strings.HasSuffix(x, " a16s/q8c") }) {
		t.Errorf("products %q, want the five of the model in the scheme that the NPU executes", shapes)
	}
	header, err := Header(whole, "", "", "test", 1)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rec.jsonl")
	run := func(b *grouper) (FactReport, *record.Set, error) {
		w, err := record.Resume(path, header)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		rep, err := CompilerFacts(t.Context(), s, requests, w, FactOptions{Compilers: map[string]driver.GroupCompiler{"qnn": b}, Seed: 1})
		return rep, w.Set(), err
	}
	if _, set, err := run(&grouper{stop: 8}); err == nil || len(set.Facts()) != 7 {
		t.Fatalf("interrupted in the eighth call: %d facts, %v", len(set.Facts()), err)
	}
	rep, set, err := run(&grouper{})
	if err != nil {
		t.Fatal(err)
	}
	keys := 0
	for _, r := range requests {
		keys += len(r.Keys())
		for _, k := range r.Keys() {
			if set.LookupFacts(k) == nil {
				t.Errorf("no facts of %s", k)
			}
		}
	}
	if rep.Present != 7 || rep.Added != keys-7 || set.Len() != 0 {
		t.Errorf("%+v and %d measurements, want 7 present, %d added and none", rep, set.Len(), keys-7)
	}
	for _, f := range set.Facts() {
		switch {
		case f.Op.M == 264 && f.Rows == nil:
			if !strings.Contains(f.Refused, "264 rows: no") {
				t.Errorf("%s: %+v", f.Key(), f)
			}
		case slices.Contains(f.Rows, 264):
			t.Errorf("%s: is in a binary that was compiled", f.Key())
		case f.Rows == nil && (f.SpillBytes != int64(f.Op.M) || f.Arch != 75 || f.Bytes <= int64(f.Op.K*f.Op.N) || f.Options["soc_model"] != "57"):
			t.Errorf("%s: %+v", f.Key(), f)
		case f.Rows != nil && f.SpillBytes != int64(f.Rows[len(f.Rows)-1]):
			t.Errorf("%s: spill %d, want the largest", f.Key(), f.SpillBytes)
		}
	}
	if rep, _, err := run(&grouper{stop: 1}); err != nil || rep.Added != 0 {
		t.Errorf("everything is there: %+v, %v", rep, err)
	}
	if _, err := FactRequests(s, m, Want{Schemes: []op.Scheme{op.A32W32}}, nil); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("a scheme that the NPU does not execute: got %v", err)
	}
	_, err = CompilerFacts(t.Context(), s, requests, nil, FactOptions{})
	if diag.ClassOf(err) != diag.ClassUnavailable {
		t.Errorf("without a compiler: got %v", err)
	}
}
