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
			file := must(os.OpenFile(p, os.O_WRONLY, 0))
			_, err := file.WriteAt(data, 0)
			check(t, err)
			check(t, file.Close())
			check(t, os.Chtimes(p, time.Unix(1, 0), time.Unix(1, 0)))
		}, 0, ""},
		{"renamed over", func(t *testing.T, p string, _ int64) {
			check(t, os.WriteFile(p+".new", []byte("other"), 0o600))
			check(t, os.Rename(p+".new", p))
		}, 0, ""},
		{"removed", func(t *testing.T, p string, _ int64) { check(t, os.Remove(p)) }, 0, ""},
		{"truncated", func(t *testing.T, p string, _ int64) { check(t, os.Truncate(p, 100)) }, diag.ClassIO,
			"and has 100: it was changed while in use"},
		{"grown", func(t *testing.T, p string, _ int64) { check(t, os.Truncate(p, 1<<30)) }, diag.ClassIO,
			"changed while in use"},
		{"one byte changed", func(t *testing.T, p string, at int64) {
			file := must(os.OpenFile(p, os.O_RDWR, 0))
			_, err := file.WriteAt([]byte{0xee}, at+5000)
			check(t, err)
			check(t, file.Close())
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
	for _, test := range cases {
		for _, exploded := range []bool{false, true} {
			for _, mode := range []Mode{Lazy, Eager, Copy} {
				t.Run(test.what, func(t *testing.T) {
					recipe := baseRecipe()
					dir := t.TempDir()
					path := filepath.Join(dir, "a.hetb")
					check(t, os.WriteFile(path, recipe.build(), 0o600))
					file, from := path, int64(0)
					if exploded {
						opened := must(Open(path, Options{Trust: ring(1, keyA)}))
						path = filepath.Join(dir, "exploded")
						check(t, opened.Explode(ctx, path))
						check(t, opened.Close())
						file = blobFile(recipe, path, name)
					} else {
						from = must(Inspect(path)).offset(name)
					}
					bundled := must(Open(path, Options{Trust: ring(1, keyA), Mode: mode}))
					defer bundled.Close()
					got := bytes.Clone(must(bundled.Bytes(name)))
					test.damage(t, file, from)
					err := bundled.Unchanged()
					again := bundled.Unchanged()
					if mode == Copy {
						if err != nil || !bytes.Equal(must(bundled.Bytes(name)), got) {
							t.Errorf("a copy: got %v", err)
						}
						return
					}
					if (err == nil) != (test.class == 0) ||
						err != nil && (diag.ClassOf(err) != test.class || !strings.Contains(err.Error(), test.say)) {
						t.Errorf("exploded %v, mode %d: got %v, want class %d and %q", exploded, mode, err, test.class,
							test.say)
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
	opened := openAhead(t, path)
	if _, err := opened.Bytes("weights/0"); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _ = opened.Unchanged() }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
