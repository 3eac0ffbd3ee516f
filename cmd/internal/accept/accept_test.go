package accept

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/bundle"
)

func streams() (*cli.Streams, *bytes.Buffer) {
	var errs bytes.Buffer
	return &cli.Streams{Tool: "test", Out: &bytes.Buffer{}, Err: &errs}, &errs
}

// A copy that no machine has memory for is refused before anything is allocated.
func TestCopyNeedsMemory(t *testing.T) {
	huge := &bundle.Manifest{Blobs: []bundle.Blob{{Name: "weights/0", Role: bundle.RoleWeights, Bytes: 1 << 45}, {Name: "plan", Role: bundle.RolePlan, Bytes: 1 << 20}}}
	if err := fits(huge); diag.ClassOf(err) != diag.ClassUnavailable || len(diag.HintsOf(err)) == 0 {
		t.Errorf("got %v", err)
	}
	if err := fits(&bundle.Manifest{Blobs: huge.Blobs[1:]}); err != nil {
		t.Error(err)
	}
}

func TestClock(t *testing.T) {
	for text, want := range map[string]int64{"1000000000": 1e9, "2001-09-09T01:46:40Z": 1e9, "2001-09-09T03:46:40+02:00": 1e9} {
		if got, err := (&Terms{now: text}).clock(); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "-5", "now", "2001-09-09", "1e9", "0001-01-01T00:00:00Z", "99999999999999999999"} {
		if _, err := (&Terms{now: text}).clock(); diag.ClassOf(err) != diag.ClassUsage {
			t.Errorf("%q: got %v", text, err)
		}
	}
	if got, err := (&Terms{}).clock(); err != nil || got < 1 {
		t.Errorf("this machine's clock: %d, %v", got, err)
	}
}

// Several processes raise one file: the largest version stays, every product keeps its own, and each sees a whole file.
func TestStateIsShared(t *testing.T) {
	const workers, versions = 6, 8
	path := filepath.Join(t.TempDir(), "s.json")
	shared := func(worker, version int) int64 { return int64((version*7 + worker) % 40) }
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for version := range versions {
				x, err := openState(path)
				if err != nil {
					t.Error(err)
					return
				}
				for _, r := range []bundle.Ratchet{{Product: "shared", Generation: 1, SecurityVersion: shared(worker, version)},
					{Product: fmt.Sprintf("own-%d", worker), Generation: 1, SecurityVersion: int64(version)}} {
					s, _ := streams()
					if err := x.raise(s, r); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	x, err := openState(path)
	if err != nil {
		t.Fatal(err)
	}
	most := int64(0)
	for worker := range workers {
		if own := x.stored.Of(fmt.Sprintf("own-%d", worker)); own == nil || own.SecurityVersion != versions-1 {
			t.Errorf("worker %d: %v", worker, own)
		}
		for version := range versions {
			most = max(most, shared(worker, version))
		}
	}
	if got := x.stored.Of("shared"); got == nil || got.SecurityVersion != most {
		t.Errorf("got %v, want %d", got, most)
	}
}

// envState makes the test binary a process that raises this file until it is killed.
const envState = "HETC_TEST_STATE"

// A writer that is killed at any moment leaves the old or a newer file, never a part of one.
func TestStateOfKilledWriter(t *testing.T) {
	if path := os.Getenv(envState); path != "" {
		for {
			raiseByOne(path)
		}
	}
	path := filepath.Join(t.TempDir(), "s.json")
	last := int64(-1)
	version := func() int64 {
		x, err := openState(path)
		if err != nil {
			t.Fatal(err)
		}
		if r := x.stored.Of("p"); r != nil {
			return r.SecurityVersion
		}
		return -1
	}
	for i := range 8 {
		c := exec.Command(os.Args[0], "-test.run", "^TestStateOfKilledWriter$")
		c.Env = append(os.Environ(), envState+"="+path)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(30 * time.Second); version() <= last && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(i) * time.Millisecond)
		_ = c.Process.Kill()
		_ = c.Wait()
		now := version()
		if now <= last {
			t.Fatalf("version %d after %d: the writer did nothing", now, last)
		}
		last = now
	}
}

func raiseByOne(path string) {
	x, err := openState(path)
	if err == nil {
		next := int64(0)
		if r := x.stored.Of("p"); r != nil {
			next = r.SecurityVersion + 1
		}
		s, _ := streams()
		err = x.raise(s, bundle.Ratchet{Product: "p", Generation: 1, SecurityVersion: next})
	}
	if err != nil {
		os.Exit(1)
	}
}

// storedBefore is what putState stores.
var storedBefore = bundle.Ratchet{Product: "p", Generation: 1, SecurityVersion: 3}

func putState(t *testing.T, path string) {
	t.Helper()
	data, err := bundle.Ratchets{storedBefore}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o444); err != nil {
		t.Fatal(err)
	}
}

// onlyRead raises a state that can be read and not written: it is compared, and that nothing was stored is said.
func onlyRead(t *testing.T, path string) {
	t.Helper()
	x, err := openState(path)
	if err != nil {
		t.Fatal(err)
	}
	s, errs := streams()
	if err := x.raise(s, storedBefore); err != nil || errs.Len() > 0 {
		t.Errorf("nothing to store: %v, %q", err, errs)
	}
	newer := storedBefore
	newer.SecurityVersion++
	if err := x.raise(s, newer); err != nil || !strings.Contains(errs.String(), "warning: ") || !strings.Contains(errs.String(), "cannot be written") {
		t.Errorf("got %v, %q", err, errs)
	}
	if x, err = openState(path); err != nil || *x.stored.Of("p") != storedBefore {
		t.Errorf("stored %+v, %v, want %+v", x.stored, err, storedBefore)
	}
}

func TestStateThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s.json")
	putState(t, path)
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o755)
	if f, err := os.Create(filepath.Join(dir, "x")); err == nil {
		f.Close()
		t.Skip("this user may write everywhere, whatever the permissions say; TestStateOnReadOnlyDisk is for such a user")
	}
	onlyRead(t, path)
}

// A state that is lost while a bundle runs is an error that says so, for every user.
func TestStateThatCannotBeStored(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s.json")
	x, err := openState(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	s, errs := streams()
	err = x.raise(s, storedBefore)
	if diag.ClassOf(err) != diag.ClassIO || !strings.Contains(err.Error(), "was not stored") || len(diag.HintsOf(err)) == 0 || errs.Len() > 0 {
		t.Errorf("without the directory: got %v, %q", err, errs)
	}
	if err := os.WriteFile(dir, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := openState(path); diag.ClassOf(err) != diag.ClassIO || !strings.Contains(err.Error(), "is no directory") {
		t.Errorf("below a file: got %v", err)
	}
}

// A lock that another process does not give back is an error, not a hang.
func TestLockHasAnEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	unlock, err := lock(path, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(path, 20*time.Millisecond); err == nil {
		t.Skip("this system has no locks")
	} else if errors.Is(err, os.ErrPermission) {
		t.Error(err)
	}
	unlock()
	if unlock, err = lock(path, time.Second); err != nil {
		t.Fatal(err)
	}
	unlock()
}
