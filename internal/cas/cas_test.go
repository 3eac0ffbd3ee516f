package cas

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
)

// tester is what testing.T and rapid.T have in common.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func open(t testing.TB, dir string, o Options) *Cache {
	t.Helper()
	c, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func write(data []byte) func(string) error {
	return func(path string) error { return os.WriteFile(path, data, 0o644) }
}

func put(t tester, c *Cache, k Key, data []byte) {
	t.Helper()
	e, err := c.Put(k, write(data))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if got, err := e.Data(1 << 30); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("the entry just put holds %d bytes (%v), want the %d written", len(got), err, len(data))
	}
}

// get returns the content, nil when it is missing.
func get(t tester, c *Cache, k Key) []byte {
	t.Helper()
	e, err := c.Get(k)
	if errors.Is(err, ErrMissing) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	data, err := e.Data(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// contents lists what is kept below a cache directory, without the session directories' locks.
func contents(t tester, dir, kind string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(filepath.Join(dir, version, kind), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != lockName {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func size(t tester, files []string) (n int64) {
	t.Helper()
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		n += st.Size()
	}
	return n
}

// A directory for something in the making goes with the cache that made it, or with the next one when its process died.
func TestScratch(t *testing.T) {
	dir := t.TempDir()
	c, err := Open(dir, Options{MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Scratch()
	if err != nil || a == b {
		t.Fatalf("%q and %q (%v)", a, b, err)
	}
	gone := func(what string) {
		t.Helper()
		for _, d := range []string{a, b} {
			if _, err := os.Stat(d); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %q is still there (%v)", what, d, err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(a, "x"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	gone("closed")
	if c, err = Open(dir, Options{MaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if a, err = c.Scratch(); err != nil {
		t.Fatal(err)
	}
	c.session.lock.Close() // as the end of its process does
	open(t, dir, Options{MaxBytes: 1 << 20})
	gone("dead")
	readOnly := open(t, dir, Options{ReadOnly: true})
	if _, err := readOnly.Scratch(); err == nil {
		t.Error("a cache for reading makes a directory")
	}
}

func TestPutGet(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, Options{MaxBytes: 1 << 20})
	k := KeyOf("test", "a")
	if _, err := c.Get(k); !errors.Is(err, ErrMissing) || errors.Is(err, ErrCorrupt) {
		t.Fatalf("an empty cache answers %v, want ErrMissing", err)
	}
	put(t, c, k, []byte("content"))
	put(t, c, KeyOf("test", "empty"), nil)
	other := open(t, dir, Options{ReadOnly: true}) // as another process would
	if got := get(t, other, k); string(got) != "content" {
		t.Errorf("got %q", got)
	}
	e, err := other.Get(k)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	out := filepath.Join(t.TempDir(), "out")
	if err := e.Save(out); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(out); err != nil || string(got) != "content" {
		t.Errorf("saved %q (%v)", got, err)
	}
	if _, err := e.Data(3); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("a content over the limit: %v, want a refusal", err)
	}
	// The same content under another key is there once.
	put(t, c, KeyOf("test", "b"), []byte("content"))
	if files := contents(t, dir, "data"); len(files) != 2 {
		t.Errorf("%d contents, want 2: %v", len(files), files)
	}
	// A key may change its content: the last one counts.
	put(t, c, k, []byte("other"))
	if got := get(t, c, k); string(got) != "other" {
		t.Errorf("got %q after the key was put again", got)
	}
	if _, err := other.Put(k, write(nil)); diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("put into a cache opened for reading: %v, want a refusal", err)
	}
	if left := contents(t, dir, "tmp"); len(left) != 0 {
		t.Errorf("left in the making: %v", left)
	}
}

func TestKeyOf(t *testing.T) {
	seen := map[Key]string{}
	for _, parts := range [][]string{{"k"}, {"k", ""}, {"k", "a"}, {"k", "a", ""}, {"k", "", "a"}, {"k", "a", "b"}, {"k", "ab"}, {"ka", "b"}, {"kab"}} {
		k := KeyOf(parts[0], parts[1:]...)
		if old, dup := seen[k]; dup {
			t.Errorf("%q and %s have one key", parts, old)
		}
		seen[k] = fmt.Sprintf("%q", parts)
	}
}

func TestNoteOutlivesContent(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, Options{MaxBytes: 1 << 20})
	k := KeyOf("note", "x")
	want := Digest{1, 2, 3}
	if err := c.Note(k, want, 77); err != nil {
		t.Fatal(err)
	}
	if d, n, ok, err := c.Sum(k); err != nil || !ok || d != want || n != 77 {
		t.Errorf("got %v %d %v %v", d, n, ok, err)
	}
	if got := get(t, c, k); got != nil {
		t.Errorf("a note has the content %q", got)
	}
}

// A build that fails, or writes nothing, stores nothing.
func TestFailedBuild(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, Options{MaxBytes: 1 << 20})
	k := KeyOf("test", "a")
	boom := errors.New("boom")
	if _, err := c.Put(k, func(path string) error { os.WriteFile(path, []byte("half"), 0o644); return boom }); err != boom {
		t.Errorf("got %v, want the error of the build as it is", err)
	}
	if _, err := c.Put(k, func(string) error { return nil }); diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("a build that wrote nothing: %v, want an error", err)
	}
	for _, kind := range []string{"keys", "data", "tmp"} {
		if left := contents(t, dir, kind); len(left) != 0 {
			t.Errorf("left in %s: %v", kind, left)
		}
	}
}

// Every damage of a content or a key file is found, and the content is made again.
func TestCorruption(t *testing.T) {
	data := []byte("a content of some bytes")
	damages := map[string]func([]byte) []byte{
		"empty":     func([]byte) []byte { return nil },
		"truncated": func(b []byte) []byte { return b[:len(b)-1] },
		"longer":    func(b []byte) []byte { return append(b, 'x') },
		"zeroed":    func(b []byte) []byte { return make([]byte, len(b)) },
	}
	for _, kind := range []string{"data", "keys"} {
		probe := t.TempDir()
		put(t, open(t, probe, Options{MaxBytes: 1 << 20}), KeyOf("test", "a"), data)
		for i := range size(t, contents(t, probe, kind)) {
			damages[fmt.Sprintf("bit in byte %d", i)] = func(b []byte) []byte { b[i] ^= 1 << (i % 8); return b }
		}
		dir := t.TempDir()
		c := open(t, dir, Options{MaxBytes: 1 << 20})
		k := KeyOf("test", "a")
		put(t, c, k, data)
		path := contents(t, dir, kind)[0]
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for name, damage := range damages {
			if n := 0; strings.HasPrefix(name, "bit ") {
				if fmt.Sscanf(name, "bit in byte %d", &n); n >= len(whole) {
					continue
				}
			}
			if err := os.WriteFile(path, damage(bytes.Clone(whole)), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := c.Get(k)
			if !errors.Is(err, ErrMissing) {
				t.Fatalf("%s, %s: %v, want ErrMissing", kind, name, err)
			}
			if err := os.WriteFile(path, damage(bytes.Clone(whole)), 0o600); err != nil {
				t.Fatal(err)
			}
			if b, again := c.Read(k); b != nil || !errors.Is(again, ErrMissing) || errors.Is(again, ErrCorrupt) != errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s, %s: read %q and %v, got %v", kind, name, b, again, err)
			}
			if kind == "data" && !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s, %s: %v, want ErrCorrupt too", kind, name, err)
			}
			put(t, c, k, data)
			if got := get(t, c, k); !bytes.Equal(got, data) {
				t.Fatalf("%s, %s: %q after it was made again", kind, name, got)
			}
		}
	}
	// A key file under another key's name is no answer, either.
	dir := t.TempDir()
	c := open(t, dir, Options{MaxBytes: 1 << 20})
	a, b := KeyOf("test", "a"), KeyOf("test", "b")
	put(t, c, a, data)
	if err := os.MkdirAll(filepath.Dir(c.keyPath(b)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.keyPath(a), c.keyPath(b)); err != nil {
		t.Fatal(err)
	}
	if got := get(t, c, b); got != nil {
		t.Errorf("a moved key file answers %q", got)
	}
}

// clock is a clock that tests set.
type clock struct{ now time.Time }

func newClock() *clock                   { return &clock{time.Unix(1e9, 0)} }
func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

// What was not used for longest goes first, keys stay.
func TestEviction(t *testing.T) {
	dir := t.TempDir()
	ck := newClock()
	c := open(t, dir, Options{MaxBytes: 1000, Now: ck.Now})
	content := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 200) }
	key := func(i int) Key { return KeyOf("test", fmt.Sprint(i)) }
	for i := range 4 {
		ck.advance(time.Hour)
		put(t, c, key(i), content(i))
	}
	ck.advance(time.Hour)
	if get(t, c, key(0)) == nil {
		t.Fatal("evicted below the bound")
	}
	ck.advance(time.Hour)
	if _, _, ok, err := c.Sum(key(1)); !ok || err != nil { // asking for the digest is a use, too
		t.Fatalf("%v %v", ok, err)
	}
	for i := 4; i < 6; i++ {
		ck.advance(time.Hour)
		put(t, c, key(i), content(i))
	}
	for i, want := range []bool{true, true, false, false, true, true} {
		if got := get(t, c, key(i)) != nil; got != want {
			t.Errorf("content %d is kept: %v, want %v", i, got, want)
		}
		if d, n, ok, err := c.Sum(key(i)); err != nil || !ok || n != 200 || d == (Digest{}) {
			t.Errorf("the digest of key %d is forgotten", i)
		}
	}
	if n := size(t, contents(t, dir, "data")); n > 1000 {
		t.Errorf("%d bytes are kept, want at most 1000", n)
	}
}

// What is too large is not kept, but usable and remembered.
func TestTooLarge(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, Options{MaxBytes: 100})
	k := KeyOf("test", "large")
	data := bytes.Repeat([]byte("x"), 60)
	e, err := c.Put(k, write(data))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := e.Data(100); err != nil || !bytes.Equal(got, data) {
		t.Errorf("got %q, %v", got, err)
	}
	out := filepath.Join(t.TempDir(), "out")
	plain := out + ".plain"
	if err := os.WriteFile(plain, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	usual, err := os.Stat(plain)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // moved, then copied from what is open
		if err := e.Save(out); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, data) {
			t.Errorf("saved %q, %v", got, err)
		}
		if st, err := os.Stat(out); err != nil || st.Mode() != usual.Mode() {
			t.Errorf("saved with mode %v (%v), want %v, as any new file", st.Mode(), err, usual.Mode())
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if d, _, ok, _ := c.Sum(k); !ok || d != e.Digest {
		t.Errorf("its digest is forgotten")
	}
	if got := get(t, c, k); got != nil {
		t.Errorf("it is kept")
	}
	if left := append(contents(t, dir, "data"), contents(t, dir, "tmp")...); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// An entry stays readable when its content is evicted or replaced.
func TestOpenEntrySurvives(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, Options{MaxBytes: 1 << 20})
	k := KeyOf("test", "a")
	put(t, c, k, []byte("content"))
	e, err := c.Get(k)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := os.Remove(contents(t, dir, "data")[0]); err != nil {
		t.Skip("this system removes no open files")
	}
	if got, err := e.Data(100); err != nil || string(got) != "content" {
		t.Errorf("got %q, %v", got, err)
	}
}

// A content that changes while it is open is never saved.
func TestChangedWhileOpen(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, Options{MaxBytes: 1 << 20})
	k := KeyOf("test", "a")
	put(t, c, k, []byte("content"))
	e, err := c.Get(k)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := os.WriteFile(contents(t, dir, "data")[0], []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if err := e.Save(out); diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("saved: %v, want an error", err)
	}
	if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was saved: %v", err)
	}
	if _, err := e.Data(100); diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("read: %v, want an error", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		if _, err := Open(dir, Options{}); diag.ClassOf(err) != diag.ClassIO {
			t.Errorf("%s: %v, want an error of class IO", dir, err)
		}
	}
	missing := filepath.Join(t.TempDir(), "missing")
	c := open(t, missing, Options{ReadOnly: true})
	if get(t, c, KeyOf("test")) != nil {
		t.Error("an empty cache has content")
	}
	if _, err := os.Stat(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opening for reading made the directory: %v", err)
	}
}

// Whatever is put, evicted, damaged and asked for: an answer is right or missing, the bound holds, and
// what was put last and undamaged is there.
func TestProperty(t *testing.T) {
	require.Slow(t)
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "cas")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		ck := newClock()
		max := rapid.Int64Range(0, 4000).Draw(t, "max")
		c, err := Open(dir, Options{MaxBytes: max, Now: ck.Now})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		model := map[int][]byte{}
		key := func(i int) Key { return KeyOf("test", fmt.Sprint(i)) }
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				ck.advance(time.Hour)
				i := rapid.IntRange(0, 9).Draw(t, "key")
				data := bytes.Repeat([]byte{byte(rapid.IntRange(0, 3).Draw(t, "byte"))}, rapid.IntRange(0, 1200).Draw(t, "size"))
				e, err := c.Put(key(i), write(data))
				if err != nil {
					t.Fatal(err)
				}
				e.Close()
				model[i] = data
				if got := get(t, c, key(i)); int64(len(data)) <= max/keptFraction && !bytes.Equal(got, data) {
					t.Fatalf("put %d bytes, got %d", len(data), len(got))
				}
			},
			"get": func(t *rapid.T) {
				ck.advance(time.Hour)
				i := rapid.IntRange(0, 9).Draw(t, "key")
				want, put := model[i]
				if got := get(t, c, key(i)); got != nil && (!put || !bytes.Equal(got, want)) {
					t.Fatalf("key %d: got %d bytes, want %d", i, len(got), len(want))
				}
				_, n, ok, err := c.Sum(key(i))
				if err != nil || ok && n != int64(len(want)) {
					t.Fatalf("key %d: size %d (%v), want %d", i, n, err, len(want))
				}
			},
			"damage": func(t *rapid.T) {
				files := append(contents(t, dir, "data"), contents(t, dir, "keys")...)
				if len(files) == 0 {
					t.Skip("nothing there")
				}
				f := rapid.SampledFrom(files).Draw(t, "file")
				data, err := os.ReadFile(f)
				if err != nil || len(data) == 0 {
					t.Skip("nothing in it")
				}
				data[rapid.IntRange(0, len(data)-1).Draw(t, "at")] ^= 0x55
				if err := os.WriteFile(f, data, 0o600); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				if n := size(t, contents(t, dir, "data")); n > max {
					t.Fatalf("%d bytes are kept, want at most %d", n, max)
				}
			},
		})
	})
}
