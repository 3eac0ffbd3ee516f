package matrix

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/cas"
)

// remembering is a build that remembers digests, and a file of weights in a directory, which is a model to it.
type remembering struct {
	*build
	t     *testing.T
	model string // directory
	file  string // in it
	later time.Duration
}

// newRemembering returns one whose clock is an hour ahead, so that what was written now is settled.
func newRemembering(t *testing.T) *remembering {
	t.Helper()
	dir := t.TempDir()
	cache, err := cas.Open(filepath.Join(dir, "cache"), cas.Options{MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Close() })
	r := &remembering{t: t, model: filepath.Join(dir, "model"), later: time.Hour}
	r.file = filepath.Join(r.model, "weights")
	r.build = &build{o: Options{Cache: cache, Now: func() time.Time { return time.Now().Add(r.later) }}}
	if err := os.Mkdir(r.model, 0o755); err != nil {
		t.Fatal(err)
	}
	r.write(r.file, "one")
	if _, ok := stampOf(r.file); !ok {
		t.Skip("this system does not tell when a file changed")
	}
	return r
}

// write writes a file.
func (r *remembering) write(path, text string) {
	r.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// check asks for a digest, which must be that of the weights, and expects it to be computed or remembered.
func (r *remembering) check(what, path string, wantComputed bool) {
	r.t.Helper()
	digest := func() cas.Digest {
		data, err := os.ReadFile(r.file)
		if err != nil {
			r.t.Fatal(err)
		}
		return cas.Digest(cas.KeyOf(string(data)))
	}
	computed := false
	got, err := r.remembered(path, func() (cas.Digest, error) {
		computed = true
		return digest(), nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if got != digest() {
		r.t.Fatalf("%s: a wrong digest", what)
	}
	if computed != wantComputed {
		r.t.Errorf("%s: the digest was computed: %v, want %v", what, computed, wantComputed)
	}
}

// What did not change is hashed once, as a file and as a directory.
func TestRemembered(t *testing.T) {
	r := newRemembering(t)
	for _, path := range []string{r.file, r.model} {
		r.check("first", path, true)
		r.check("again", path, false)
	}
}

// A change is noticed although the size is the same and the time of modification was set back.
func TestRememberedWithTimeSetBack(t *testing.T) {
	r := newRemembering(t)
	r.check("first", r.file, true)
	r.check("first", r.model, true)
	before, err := os.Stat(r.file)
	if err != nil {
		t.Fatal(err)
	}

	time.Sleep(20 * time.Millisecond) // beyond a tick of the file system's clock
	r.write(r.file, "two")
	if err := os.Chtimes(r.file, before.ModTime(), before.ModTime()); err != nil {
		t.Fatal(err)
	}

	for _, path := range []string{r.file, r.model} {
		r.check("changed unseen", path, true)
		r.check("again", path, false)
	}
}

// A file that takes the place of another is noticed, and so is one that comes besides.
func TestRememberedWithOtherFiles(t *testing.T) {
	r := newRemembering(t)
	r.check("first", r.file, true)
	r.check("first", r.model, true)

	other := filepath.Join(filepath.Dir(r.model), "other")
	r.write(other, "six")
	if err := os.Rename(other, r.file); err != nil {
		t.Fatal(err)
	}
	r.check("replaced", r.file, true)
	r.check("replaced", r.model, true)

	r.write(filepath.Join(r.model, "config.json"), "")
	r.check("a neighbour", r.model, true)
}

// What changed a moment ago may change again in the same tick, and is not remembered.
func TestRememberedTooFresh(t *testing.T) {
	r := newRemembering(t)
	r.later = 0
	r.write(r.file, "now")
	for range 3 {
		r.check("too fresh", r.file, true)
	}
}
