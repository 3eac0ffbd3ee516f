package doctor

import (
	"context"
	"errors"
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

func (partly) Name() string { return "partly" }
func (partly) Devices(context.Context) ([]driver.Device, error) {
	return []driver.Device{{Select: "1.0", Description: "a device"}}, nil
}
func (partly) Library(context.Context) (driver.Library, error) {
	return driver.Library{Name: "CL", Version: "3", Skipped: []string{`platform 0, "broken": it says no`}}, nil
}
func (partly) Open(context.Context, driver.Config) (driver.Processor, error) {
	return nil, errors.New("nothing is opened")
}

// Of a driver that has a part which fails the others are listed, and the reason is told.
func TestSkippedPart(t *testing.T) {
	const reason = `platform 0, "broken": it says no`
	found := Machine{Drivers: []driver.Driver{partly{}}}.drivers(t.Context())
	if len(found) != 1 || found[0].Status != Note || found[0].Found != "CL 3; 1 processor: 1.0; skipped "+reason {
		t.Errorf("doctor finds %+v", found)
	}
	entry := Describe(t.Context(), partly{})
	if !slices.ContainsFunc(entry.Rows(), func(row []string) bool { return row[1] == "skipped" && row[2] == reason }) {
		t.Errorf("hetc drivers says %q", entry.Rows())
	}
}

// A machine where nothing is right has a line for each of it, with a way out.
func TestProblems(t *testing.T) {
	t.Setenv("HETC_HOST_KERNELS", "abacus")
	t.Setenv("HETC_SIGNING_KEY_FILE", filepath.Join(t.TempDir(), "gone.key"))
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "gone"))
	list := Machine{Version: "0", Drivers: []driver.Driver{lacking{}}}.Check(context.Background())
	want := map[string]Status{"cpu": Problem, "cores": Problem, "driver lacking": Note, "temporary directory": Problem, "cache directory": Note, "signing key": Problem, "catalog of models": OK}
	for _, f := range list {
		if s, ok := want[f.Check]; ok && f.Status != s {
			t.Errorf("%s: %s (%s), want %s", f.Check, f.Status, f.Found, s)
		}
		delete(want, f.Check)
		if f.Status != OK && f.Hint == "" || f.Found == "" {
			t.Errorf("%s: %s, found %q, hint %q", f.Check, f.Status, f.Found, f.Hint)
		}
	}
	if len(want) > 0 {
		t.Errorf("not checked: %v", want)
	}
	err := firstProblem(list)
	if diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), "cpu, cores, temporary directory, signing key") {
		t.Errorf("got %v of class %v", err, diag.ClassOf(err))
	}
	if err := firstProblem([]Finding{ok("x", "y"), ok("z", "z").but(Note, "n")}); err != nil {
		t.Errorf("notes are no problem: %v", err)
	}
}

func TestClock(t *testing.T) {
	for year, want := range map[int]Status{1970: Problem, 2026: OK, 2262: Problem} {
		if f := clock(time.Date(year, 6, 1, 0, 0, 0, 0, time.UTC)); f.Status != want {
			t.Errorf("%d: %s", year, f.Status)
		}
	}
}

// Reading gigabytes of weights can be interrupted.
func TestCheckModelEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := checkModel(ctx, "../../../testdata/models/tiny-llama-kjv"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the cancellation", err)
	}
}

// A version that names the library is shown alone.
func TestCalled(t *testing.T) {
	for _, c := range [][3]string{
		{"OpenCL", "OpenCL 3.0 PoCL 3.1", "OpenCL 3.0 PoCL 3.1"}, {"ONNX Runtime", "1.31.1", "ONNX Runtime 1.31.1"},
		{"QNN", "", "QNN"},
	} {
		if got := called(c[0], c[1]); got != c[2] {
			t.Errorf("called(%q, %q) = %q, want %q", c[0], c[1], got, c[2])
		}
	}
}
