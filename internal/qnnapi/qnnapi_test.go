package qnnapi

import (
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
)

func compile(t *testing.T, define string) string {
	t.Helper()
	if native.Supported() != nil || runtime.GOOS == "windows" {
		t.Skip("the library for tests is compiled with cc's options on Unix")
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: ", err)
	}
	path := filepath.Join(t.TempDir(), "lib.so")
	args := []string{"-shared", "-fPIC", "-w", "-o", path, "testdata/fake.c"}
	if define != "" {
		args = append(args, "-D"+define)
	}
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

func TestReadContext(t *testing.T) {
	path := compile(t, "")
	got, err := ReadContext(path, []byte("Q2 and more"))
	want := &Context{Arch: 75, SoC: 57, Graphs: map[string]Graph{"first": {4325376, 8 << 20}, "second": {0, 4 << 20}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for binary, reason := range map[string]string{"X2 and more": "read a binary: error 5", "": "is empty"} {
		if _, err := ReadContext(path, []byte(binary)); err == nil || !strings.Contains(err.Error(), reason) || diag.ClassOf(err) != diag.ClassRun {
			t.Errorf("%q: got %v, want %q", binary, err, reason)
		}
	}
	l, err := native.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	open, err := l.Symbol("open_contexts")
	if err != nil || native.Call(open) != 0 {
		t.Errorf("%d contexts are open (%v)", native.Call(open), err)
	}
}

// A library whose structures may lie otherwise is refused before they are read.
func TestOtherVersions(t *testing.T) {
	for define, want := range map[string]string{
		"MINOR=16": "its system interface is 1.16, hetc reads that of 1.15 (QAIRT 2.51)",
		"INFO=4":   "description of a binary of version 4, want 3",
		"GRAPH=1":  "description of a graph of version 1, want 3",
		"BLOB=2":   "description of a graph's memory of version 2, want 1",
		"NONE":     "QnnSystemInterface_getProviders",
	} {
		_, err := ReadContext(compile(t, define), []byte("Q2 and more"))
		if err == nil || !strings.Contains(err.Error(), want) || diag.ClassOf(err) != diag.ClassUnavailable {
			t.Errorf("%s: got %v, want %q", define, err, want)
		}
	}
	if _, err := ReadContext("/nowhere/libnone.so", []byte("Q1 ")); diag.ClassOf(err) != diag.ClassUnavailable {
		t.Errorf("no library: %v", err)
	}
}
