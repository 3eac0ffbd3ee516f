package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/cmd/internal/matrix"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/profiler/imported"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/workload"
)

// TestDocExamples reads every example file of docs with the reader it is an example for.
func TestDocExamples(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("no documents found: %v", err)
	}
	examples := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(text), "```")[1:] {
			kind, body, _ := strings.Cut(block, "\n")
			if kind != "yaml" && kind != "json" {
				continue
			}
			examples++
			switch {
			case strings.Contains(body, "hetc.workload/1"):
				_, err = workload.Parse(name, []byte(body))
			case strings.Contains(body, "hetc.build/1"):
				_, err = matrix.ParseConfig(name, []byte(body))
			case strings.Contains(body, "hetc.soc/1"):
				_, err = socs.Parse(name, []byte(body))
			case strings.Contains(body, "hetc.import/1"):
				_, err = imported.ParseMapping(name, []byte(body))
			case strings.Contains(body, "hetc.record/1"):
				_, err = record.Read(name, strings.NewReader(body))
			case strings.Contains(body, "hetc.calibration/1"):
				_, err = calibration.Decode(name, []byte(body))
			default:
				t.Errorf("%s: an example of no known schema", name)
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if examples < 3 {
		t.Errorf("%d examples in docs, want at least 3", examples)
	}
}
