package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hetc/hetc/cmd/internal/engines"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/workload"
)

const tinyLlama = "../../../testdata/models/tiny-llama-kjv"

// The part of a text that calibrates is whole lines, and quality reads none of it.
func TestRestOfText(t *testing.T) {
	model, err := models.Open(tinyLlama)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	file := filepath.Join(tinyLlama, "valid.txt")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	bench := &enginesBench{EnginesOptions: &EnginesOptions{Text: file}}
	rest, err := bench.restOfText(model)
	if err != nil {
		t.Fatal(err)
	}

	read, found := bytes.CutSuffix(text, rest)
	if !found || len(rest) == 0 || read[len(read)-1] != '\n' {
		t.Fatalf("got %d bytes, want the last lines of %d bytes", len(rest), len(text))
	}

	const all = 0
	before, err := (&trial.Model{Model: model}).Cut(read, all, engines.Window)
	if err != nil {
		t.Fatal(err)
	}
	// One line of this text is shorter than a window.
	if got, most := len(before.Windows), engines.Windows+2; got <= engines.Windows || got > most {
		t.Errorf("%d windows are left to quality, want %d to %d", got, engines.Windows+1, most)
	}
}

// A text that ends with the windows of quality, or soon after, calibrates nothing, and decode keeps blocks of 32.
func TestNoRestOfText(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(tinyLlama, "valid.txt"))
	if err != nil {
		t.Fatal(err)
	}

	// The first 60 windows are about 54,000 bytes.
	for _, size := range []int{6000, 53000, 57000} {
		file := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(file, text[:size], 0o644); err != nil {
			t.Fatal(err)
		}

		bench := &enginesBench{dir: t.TempDir(), EnginesOptions: &EnginesOptions{
			Text: file, Prompts: []int{32}, Depths: []int{8}, Gen: 4,
		}}
		if err := bench.calibrate(t.Context(), tinyLlama); err != nil {
			t.Fatal(err)
		}
		if schemes := bench.tasksWorkload().Schemes.Decode; bench.calibration != "" || schemes[1] != op.A8TQ4B32 {
			t.Errorf("%d bytes: calibration %q, schemes of decode %v", size, bench.calibration, schemes)
		}
	}
}

// A plan within memory may have prompts multiply what decode reads, requantised. Other plans may not, since that loses
// more than 8 bits do, and no plan may for which a workload says what it may lose.
func TestBoundedPlansMayRequantise(t *testing.T) {
	given := filepath.Join(t.TempDir(), "given.yaml")
	for _, test := range []struct {
		workload      string
		bounded, want bool
	}{{"", false, false}, {"", true, true}, {given, true, false}} {
		bench := &enginesBench{EnginesOptions: &EnginesOptions{
			Prompts: []int{32}, Depths: []int{8}, Gen: 4, Workload: test.workload,
		}}
		file := filepath.Join(t.TempDir(), "workload.yaml")
		if err := bench.writeWorkload(file, test.bounded); err != nil {
			t.Fatal(err)
		}
		written, err := workload.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(written.Schemes.Prefill, op.A8CQ4B32); got != test.want {
			t.Errorf("%+v: schemes of prefill %v", test, written.Schemes.Prefill)
		}
		if slices.Contains(written.Schemes.Decode, op.A8CQ4B32) {
			t.Errorf("%+v: schemes of decode %v", test, written.Schemes.Decode)
		}
		if !test.bounded { // the workload that is given below: both phases permit 4 bits
			if err := os.Rename(file, given); err != nil {
				t.Fatal(err)
			}
		}
	}
}
