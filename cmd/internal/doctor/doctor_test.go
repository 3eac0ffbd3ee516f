package doctor

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
)

// lacking is a driver without its library.
type lacking struct{ driver.Driver }

func (lacking) Name() string { return "lacking" }
func (lacking) Devices(context.Context) ([]driver.Device, error) {
	return nil, &driver.Unavailable{Driver: "lacking", Tried: []string{"liblacking.so"}}
}

// partly is a driver of which one part fails.
type partly struct{ driver.Driver }

const skippedPart = `platform 0, "broken": it says no`

func (partly) Name() string { return "partly" }
func (partly) Devices(context.Context) ([]driver.Device, error) {
	return []driver.Device{{Select: "1.0", Description: "a device"}}, nil
}
func (partly) Library(context.Context) (driver.Library, error) {
	return driver.Library{Name: "CL", Version: "3", Skipped: []string{skippedPart}}, nil
}
func (partly) Open(context.Context, driver.Config) (driver.Processor, error) {
	return nil, errors.New("nothing is opened")
}

// Of a driver that has a part which fails the others are listed, and the reason is told.
func TestSkippedPart(t *testing.T) {
	found := Machine{Drivers: []driver.Driver{partly{}}}.drivers(t.Context())
	want := Finding{
		Check:  "driver partly",
		Status: Note,
		Found:  "CL 3; 1 processor: 1.0; skipped " + skippedPart,
		Hint:   "the processors above work; for those skipped, repair or remove what the vendor installed",
		class:  diag.ClassUnavailable,
	}
	if !slices.Equal(found, []Finding{want}) {
		t.Errorf("doctor finds %+v, want %+v", found, want)
	}
	entry := Describe(t.Context(), partly{})
	if !slices.ContainsFunc(entry.Rows(), func(row []string) bool {
		return row[1] == "skipped" && row[2] == skippedPart
	}) {
		t.Errorf("hetc drivers says %q", entry.Rows())
	}
}

// A machine where nothing is right has a line for each of it, with a way out.
func TestProblems(t *testing.T) {
	t.Setenv("HETC_HOST_KERNELS", "abacus")
	t.Setenv("HETC_SIGNING_KEY_FILE", filepath.Join(t.TempDir(), "gone.key"))
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "gone"))
	list := Machine{Version: "0", Drivers: []driver.Driver{lacking{}}}.Check(t.Context())
	want := map[string]Status{
		"cpu":                 Problem,
		"cores":               Problem,
		"driver lacking":      Note,
		"temporary directory": Problem,
		"cache directory":     Note,
		"signing key":         Problem,
		"catalog of models":   OK,
	}
	for _, finding := range list {
		if status, ok := want[finding.Check]; ok && finding.Status != status {
			t.Errorf("%s: %s (%s), want %s", finding.Check, finding.Status, finding.Found, status)
		}
		delete(want, finding.Check)
		if finding.Found == "" || finding.Status != OK && finding.Hint == "" {
			t.Errorf("%s: %s, found %q, hint %q", finding.Check, finding.Status, finding.Found, finding.Hint)
		}
	}
	if len(want) > 0 {
		t.Errorf("not checked: %v", want)
	}
	err := firstProblem(list)
	const problems = "cpu, cores, temporary directory, signing key"
	if diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), problems) {
		t.Errorf("got %v of class %v, want problems of %s", err, diag.ClassOf(err), problems)
	}
}

// Kernels that the CPU is fit for and this process may not use are noted, with the reason.
func TestRefusedKernels(t *testing.T) {
	for reason, want := range map[string]Status{"": OK, "the system keeps no state": Note} {
		got := Machine{Kernels: "avx512bf16", Refused: reason}.cpu([]int{0})
		if got.Status != want || !strings.Contains(got.Found, reason) || (got.Hint != "") != (want == Note) {
			t.Errorf("refused because of %q: %+v, want %s", reason, got, want)
		}
	}
}

// Notes are no problem.
func TestNotes(t *testing.T) {
	if err := firstProblem([]Finding{ok("x", "y"), ok("z", "z").but(Note, "n")}); err != nil {
		t.Errorf("got %v, want no problem", err)
	}
}

// A clock before this version, or after this century, is wrong.
// A quota of less than the usable cores is noted: it shows in no core's load.
func TestQuota(t *testing.T) {
	for quota, want := range map[float64]Status{1.5: Note, 2: OK, math.Inf(1): OK} {
		got := coresOf([]int{0, 1}, quota)
		if got.Status != want || (want == Note) != strings.Contains(got.Found, "the time of 1.5 of them") {
			t.Errorf("quota of %v cores: %+v", quota, got)
		}
	}
}

func TestClock(t *testing.T) {
	for year, want := range map[int]Status{1970: Problem, 2026: OK, 2262: Problem} {
		if got := clock(time.Date(year, 6, 1, 0, 0, 0, 0, time.UTC)); got.Status != want {
			t.Errorf("%d: %s, want %s", year, got.Status, want)
		}
	}
}

// Reading gigabytes of weights can be interrupted.
func TestCheckModelEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := checkModel(ctx, "../../../testdata/models/tiny-llama-kjv"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the cancellation", err)
	}
}

// A version that names the library is shown alone.
func TestCalled(t *testing.T) {
	for _, test := range []struct{ name, version, want string }{
		{"OpenCL", "OpenCL 3.0 PoCL 3.1", "OpenCL 3.0 PoCL 3.1"},
		{"ONNX Runtime", "1.31.1", "ONNX Runtime 1.31.1"},
		{"QNN", "", "QNN"},
	} {
		if got := called(test.name, test.version); got != test.want {
			t.Errorf("called(%q, %q) = %q, want %q", test.name, test.version, got, test.want)
		}
	}
}
