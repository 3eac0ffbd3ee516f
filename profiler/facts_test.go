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

// Name implements driver.GroupCompiler.
func (*grouper) Name() string { return "qnn" }

// Compile is not asked for.
func (*grouper) Compile(context.Context, op.Graph, driver.Weights, driver.Target) (driver.Artifact, error) {
	return driver.Artifact{}, errors.New("not asked for")
}

// CompileGroup makes a binary, and checks that its graphs have the same weights.
func (g *grouper) CompileGroup(_ context.Context, group []driver.Piece,
	_ driver.Target) (*driver.CompiledGroup, error) {
	if g.calls++; g.calls == g.stop {
		return nil, context.Canceled
	}
	first := group[0].Weights[0].Bytes
	out := &driver.CompiledGroup{Compiler: "QNN test", Shared: make([]byte, len(first))}
	for i, piece := range group {
		if piece.Graph.Rows() == 264 {
			return nil, &driver.Refused{Pieces: []int{i}, Reasons: []error{errors.New("264 rows:\nno")}}
		}
		weights := piece.Weights[0].Bytes
		if !bytes.Equal(weights, first) || bytes.Equal(weights[:1024], weights[1024:2048]) {
			return nil, errors.New("weights of a group differ, or repeat")
		}
		out.Artifacts = append(out.Artifacts, driver.CompiledArtifact{Artifact: driver.Artifact{
			Facts: map[string]int64{"bytes": 100, "spill_bytes": int64(piece.Graph.Rows()), "vtcm_bytes": 8 << 20,
				"arch": 75}}})
	}
	return out, nil
}

// A compiler's facts are asked for by product and length.
func TestFactRequests(t *testing.T) {
	soc, model, requests := phoneRequests(t)
	var shapes []string
	for _, request := range requests {
		shapes = append(shapes, request.Op.Key())
		rows := []int{1, 64, 250, 256, 264, 288}
		if isHead := request.Op.N == 2048; isHead {
			rows = []int{1}
		}
		if request.Proc != "npu" || !slices.Equal(request.Rows, rows) {
			t.Errorf("%s on %s: rows %v, want %v", request.Op.Key(), request.Proc, request.Rows, rows)
		}
	}
	isOther := func(key string) bool { return !strings.HasSuffix(key, " a16s/q8c") }
	if len(shapes) != 5 || slices.ContainsFunc(shapes, isOther) {
		t.Errorf("products %q, want the five of the model in the scheme that the NPU executes", shapes)
	}

	_, err := FactRequests(soc, model, Want{Schemes: []op.Scheme{op.A32W32}}, nil)
	if diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("a scheme that the NPU does not execute: got %v", err)
	}
}

// phoneRequests returns the requests for the facts of the small model on the NPU of a phone.
func phoneRequests(t *testing.T) (soc *socs.SoC, model *models.Model, requests []FactRequest) {
	t.Helper()
	whole, err := socs.OpenTarget("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	if soc, err = whole.Restricted(); err != nil {
		t.Fatal(err)
	}
	model = openModel(t, "../testdata/models/tiny-llama-kjv")
	want := Want{Buckets: []int{64, 256}, Schemes: []op.Scheme{op.A32W32, op.A16SQ8C}}
	if requests, err = FactRequests(soc, model, want, []int{250}); err != nil {
		t.Fatal(err)
	}
	return soc, model, requests
}

// Facts are kept as they come, and asking for them continues where it ended.
func TestCompilerFacts(t *testing.T) {
	soc, _, requests := phoneRequests(t)
	whole, err := socs.OpenTarget("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	header, err := Header(whole, "", "", "test", 1)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rec.jsonl")
	run := func(compiler *grouper) (FactReport, *record.Set, error) {
		writer, err := record.Resume(path, header)
		if err != nil {
			t.Fatal(err)
		}
		defer writer.Close()
		report, err := CompilerFacts(t.Context(), soc, requests, writer,
			FactOptions{Compilers: map[string]driver.GroupCompiler{"qnn": compiler}, Seed: 1})
		return report, writer.Set(), err
	}

	if _, set, err := run(&grouper{stop: 8}); err == nil || len(set.Facts()) != 7 {
		t.Fatalf("interrupted in the eighth call: %d facts, %v", len(set.Facts()), err)
	}
	report, set, err := run(&grouper{})
	if err != nil {
		t.Fatal(err)
	}

	keys := 0
	for _, request := range requests {
		keys += len(request.Keys())
		for _, key := range request.Keys() {
			if set.LookupFacts(key) == nil {
				t.Errorf("no facts of %s", key)
			}
		}
	}
	if report.Present != 7 || report.Added != keys-7 || set.Len() != 0 {
		t.Errorf("%+v and %d measurements, want 7 present, %d added and none", report, set.Len(), keys-7)
	}
	for _, facts := range set.Facts() {
		checkFacts(t, facts)
	}

	if report, _, err := run(&grouper{stop: 1}); err != nil || report.Added != 0 {
		t.Errorf("everything is there: %+v, %v", report, err)
	}
	_, err = CompilerFacts(t.Context(), soc, requests, nil, FactOptions{})
	if diag.ClassOf(err) != diag.ClassUnavailable {
		t.Errorf("without a compiler: got %v", err)
	}
}

// checkFacts checks the facts of a graph or of a binary of several.
func checkFacts(t *testing.T, facts *record.Facts) {
	t.Helper()
	if facts.Rows != nil {
		if slices.Contains(facts.Rows, 264) {
			t.Errorf("%s: is in a binary that was compiled", facts.Key())
		}
		if facts.SpillBytes != int64(facts.Rows[len(facts.Rows)-1]) {
			t.Errorf("%s: spill %d, want the largest", facts.Key(), facts.SpillBytes)
		}
		return
	}
	if facts.Op.M == 264 {
		if !strings.Contains(facts.Refused, "264 rows: no") {
			t.Errorf("%s: %+v", facts.Key(), facts)
		}
		return
	}
	isRead := facts.SpillBytes == int64(facts.Op.M) && facts.Arch == 75 && facts.Options["soc_model"] == "57"
	if !isRead || facts.Bytes <= int64(facts.Op.K*facts.Op.N) {
		t.Errorf("%s: %+v", facts.Key(), facts)
	}
}
