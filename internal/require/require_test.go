package require

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
)

func TestListed(t *testing.T) {
	for env, want := range map[string]bool{"": false, "ort": true, "opencl,ort": true, "opencl": false, "ortx": false} {
		t.Setenv(Env, env)
		if Listed("ort") != want {
			t.Errorf("%s=%s: got %v", Env, env, !want)
		}
	}
}

// ended notes how a test ended.
type ended struct {
	testing.TB
	fatal, skipped bool
}

func (e *ended) Helper()               {}
func (e *ended) Fatalf(string, ...any) { e.fatal = true; runtime.Goexit() }
func (e *ended) Skip(...any)           { e.skipped = true; runtime.Goexit() }

func TestSkip(t *testing.T) {
	for env, fatal := range map[string]bool{"": false, "host": false, "host,ort": true} {
		t.Setenv(Env, env)
		e, done := &ended{}, make(chan bool)
		go func() {
			defer close(done)
			Skip(e, "ort", errors.New("not there"))
		}()
		<-done
		if e.fatal != fatal || e.skipped == fatal {
			t.Errorf("%s=%s: failed %v, skipped %v", Env, env, e.fatal, e.skipped)
		}
	}
}

// Every slow test is in one part of those that there are. Without parts -short decides.
func TestSkipsSlow(t *testing.T) {
	t.Setenv(Part, "")
	if skips := SkipsSlow("TestOne") != ""; skips != testing.Short() {
		t.Errorf("without parts: skipped %v, with -short %v", skips, testing.Short())
	}
	if InPart("TestOne") {
		t.Error("without parts: a test is in one")
	}
	used := map[string]bool{}
	for number := range 100 {
		name, times := fmt.Sprint("Test", number), 0
		for _, part := range []string{"1/3", "2/3", "3/3"} {
			t.Setenv(Part, part)
			if (SkipsSlow(name) == "") != InPart(name) {
				t.Errorf("%s in %s: slow tests say another part than InPart", name, part)
			}
			if SkipsSlow(name) == "" {
				used[part] = true
				times++
			}
		}
		if times != 1 {
			t.Errorf("%s runs in %d parts", name, times)
		}
	}
	if len(used) != 3 {
		t.Errorf("a hundred tests are all in %v", used)
	}
}

// The folder is the module's own, unless the environment names another one.
func TestDeps(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string]string{"": filepath.Join(root, ".deps"), "/other": "/other"} {
		t.Setenv("HETC_NATIVE_DIR", set)
		if got := find(); got != want {
			t.Errorf("HETC_NATIVE_DIR=%s: got %q, want %q", set, got, want)
		}
	}
}
