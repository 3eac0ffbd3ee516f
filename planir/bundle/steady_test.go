//go:build linux || darwin || freebsd

package bundle

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
)

// What happens to the file of a bundle in use is noticed when it concerns what was released, in both forms; a copy does
// not care.
func TestUnchanged(t *testing.T) {
	const name = "weights/000"
	cases := []struct {
		what   string
		damage func(t *testing.T, path string, at int64) // of the file that holds the blob, from byte at on
		class  diag.Class                                // 0: none
		say    string
	}{
		{"nothing", func(*testing.T, string, int64) {}, 0, ""},
		{"touched", func(t *testing.T, p string, _ int64) {
			check(t, os.Chtimes(p, time.Unix(1, 0), time.Unix(1, 0)))
		}, 0, ""},
		{"same bytes written again", func(t *testing.T, p string, _ int64) {
			data := must(os.ReadFile(p))
			f := must(os.OpenFile(p, os.O_WRONLY, 0))
			_, err := f.WriteAt(data, 0)
			check(t, err)
			check(t, f.Close())
			check(t, os.Chtimes(p, time.Unix(1, 0), time.Unix(1, 0)))
		}, 0, ""},
		{"renamed over", func(t *testing.T, p string, _ int64) {
			check(t, os.WriteFile(p+".new", []byte("other"), 0o600))
			check(t, os.Rename(p+".new", p))
		}, 0, ""},
		{"removed", func(t *testing.T, p string, _ int64) { check(t, os.Remove(p)) }, 0, ""},
		{"truncated", func(t *testing.T, p string, _ int64) { check(t, os.Truncate(p, 100)) }, diag.ClassIO, "and has 100: it was changed while in use"},
		{"grown", func(t *testing.T, p string, _ int64) { check(t, os.Truncate(p, 1<<30)) }, diag.ClassIO, "changed while in use"},
		{"one byte changed", func(t *testing.T, p string, at int64) {
			f := must(os.OpenFile(p, os.O_RDWR, 0))
			_, err := f.WriteAt([]byte{0xee}, at+5000)
			check(t, err)
			check(t, f.Close())
			check(t, os.Chtimes(p, time.Unix(1, 0), time.Unix(1, 0)))
		}, diag.ClassIO, "want "},
		{"other bytes copied over it", func(t *testing.T, p string, _ int64) {
			data := must(os.ReadFile(p))
			for i := range data {
				data[i] ^= 1
			}
			check(t, os.WriteFile(p, data, 0))
			check(t, os.Chtimes(p, time.Unix(1, 0), time.Unix(1, 0)))
		}, diag.ClassIO, "changed while in use"},
	}
	for _, c := range cases {
		for _, exploded := range []bool{false, true} {
			for _, mode := range []Mode{Lazy, Eager, Copy} {
				t.Run(c.what, func(t *testing.T) {
					r := baseRecipe()
					dir := t.TempDir()
					path := filepath.Join(dir, "a.hetb")
					check(t, os.WriteFile(path, r.build(), 0o600))
					file, from := path, int64(0)
					if exploded {
						b := must(Open(path, Options{Trust: ring(1, keyA)}))
						path = filepath.Join(dir, "exploded")
						check(t, b.Explode(ctx, path))
						check(t, b.Close())
						file = blobFile(r, path, name)
					} else {
						from = must(Inspect(path)).offset(name)
					}
					b := must(Open(path, Options{Trust: ring(1, keyA), Mode: mode}))
					defer b.Close()
					got := bytes.Clone(must(b.Bytes(name)))
					c.damage(t, file, from)
					err := b.Unchanged()
					again := b.Unchanged()
					if mode == Copy {
						if err != nil || !bytes.Equal(must(b.Bytes(name)), got) {
							t.Errorf("a copy: got %v", err)
						}
						return
					}
					if (err == nil) != (c.class == 0) || err != nil && (diag.ClassOf(err) != c.class || !strings.Contains(err.Error(), c.say)) {
						t.Errorf("exploded %v, mode %d: got %v, want class %d and %q", exploded, mode, err, c.class, c.say)
					}
					if (err == nil) != (again == nil) {
						t.Errorf("exploded %v, mode %d: got %v, asked again %v", exploded, mode, err, again)
					}
					if err != nil && (!strings.Contains(err.Error(), path) || len(diag.HintsOf(err)) == 0) {
						t.Errorf("%v: want the bundle's path and a way out, got hints %q", err, diag.HintsOf(err))
					}
				})
			}
		}
	}
}

func (u *Unverified) offset(name string) int64 {
	return u.Offsets[slices.IndexFunc(u.Manifest.Blobs, func(b Blob) bool { return b.Name == name })]
}

func TestUnchangedAllocatesNothing(t *testing.T) {
	path, _ := aheadBundle(t)
	b := openAhead(t, path)
	if _, err := b.Bytes("weights/0"); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _ = b.Unchanged() }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
