package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hetc/hetc/internal/require"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/wholefile"
)

var ctx = context.Background()

func sourcesOf(r *recipe) []Source {
	var out []Source
	for _, b := range r.manifest.Blobs {
		content := r.contents[b.Name]
		out = append(out, Source{Name: b.Name, Role: b.Role, Type: b.Type, Bytes: b.Bytes, Align: b.Align, Content: bytes.NewReader(content)})
	}
	return out
}

func template(r *recipe) Manifest {
	m := r.manifest
	m.Blobs = nil
	return m
}

func signersOf(keys ...testKey) (out []Signer) {
	for _, k := range keys {
		out = append(out, k.signer())
	}
	return out
}

func noLeftovers(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("directory holds %q, want %q", got, want)
	}
}

// The writer and the recipe of the test kit share only the layout and the codec.
func TestWriteMakesWhatTheKitMakes(t *testing.T) {
	for _, keys := range [][]testKey{{keyA}, {keyB}, {keyB, keyA}} {
		r := baseRecipe()
		fullManifest(r)
		r.signers = keys
		dir := t.TempDir()
		path := filepath.Join(dir, "x.hetb")
		id, err := Write(ctx, path, template(r), sourcesOf(r), signersOf(keys...)...)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, r.build()) {
			t.Error("files differ")
		}
		u, err := Inspect(path)
		if err != nil {
			t.Fatal(err)
		}
		if u.Digest != id || u.Bytes != int64(len(got)) || len(u.Signers) != len(keys) || u.Offsets[0]%64 != 0 {
			t.Errorf("inspect says %+v", u)
		}
		noLeftovers(t, dir, "x.hetb")
	}
}

// Order of sources and signers, the directory, processors, time zone: nothing of it shows.
func TestWriteIsDeterministic(t *testing.T) {
	r := baseRecipe()
	fullManifest(r)
	write := func() []byte {
		path := filepath.Join(t.TempDir(), "another name.hetb")
		if _, err := Write(ctx, path, template(r), sourcesOf(r), signersOf(keyA, keyB)...); err != nil {
			t.Fatal(err)
		}
		return must(os.ReadFile(path))
	}
	want := write()
	t.Setenv("TZ", "Asia/Kathmandu")
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	old := r.manifest.Blobs
	for seed := range uint64(5) {
		r.manifest.Blobs = slices.Clone(old)
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(old), func(i, j int) {
			b := r.manifest.Blobs
			b[i], b[j] = b[j], b[i]
		})
		if !bytes.Equal(write(), want) {
			t.Fatal("bytes differ")
		}
	}
}

func drawRecipe(t *rapid.T) *recipe {
	r := baseRecipe()
	if rapid.Bool().Draw(t, "full") {
		fullManifest(r)
	}
	r.manifest.ChunkBytes = 1 << rapid.IntRange(12, 20).Draw(t, "chunk")
	r.signers = [][]testKey{{keyA}, {keyB}, {keyA, keyB, keyC}}[rapid.IntRange(0, 2).Draw(t, "signers")]
	names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9]{1,4}(/[a-z0-9._-]{1,3}x)?`), 0, 6, rapid.ID[string]).Draw(t, "names")
	roles := []Role{RolePlan, RoleNPUGraph, RoleGPUKernel, roleRuntime, RoleWeights, RoleTokenizer, RoleConfig, RoleReference, RoleReport}
	for _, n := range names {
		if _, taken := r.contents[n]; taken {
			continue
		}
		size := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(4090, 4100), rapid.IntRange(0, 200000)).Draw(t, "size")
		r.add(n, rapid.SampledFrom(roles).Draw(t, "role"), pattern(rapid.Byte().Draw(t, "seed"), size))
		b, _ := r.manifest.blob(n)
		r.manifest.Blobs[b].Align = max(r.manifest.Blobs[b].Align, 1<<rapid.IntRange(6, 18).Draw(t, "align"))
	}
	return r
}

// What is accepted has its contents back in each mode, and writing it again in either form
// and back gives the same bytes.
func TestRoundTrip(t *testing.T) {
	require.Slow(t)
	t.Parallel()
	base := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		dir := filepath.Join(base, strings.Repeat("i", n%200+1))
		defer os.RemoveAll(dir)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		r := drawRecipe(t)
		one := filepath.Join(dir, "one.hetb")
		id, err := Write(ctx, one, template(r), sourcesOf(r), signersOf(r.signers...)...)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Trust: ring(int64(len(r.signers)), r.signers...), Policy: Policy{Runtime: "9"}}
		exploded, again := filepath.Join(dir, "exploded"), filepath.Join(dir, "again.hetb")
		o.Mode = Mode(rapid.IntRange(0, 2).Draw(t, "mode"))
		b, err := Open(one, o)
		if err != nil {
			t.Fatal(err)
		}
		checkContents(t, b, r)
		if err := b.Explode(ctx, exploded); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if b, err = Open(exploded, o); err != nil {
			t.Fatal(err)
		}
		checkContents(t, b, r)
		if b.Digest() != id {
			t.Fatal("another identity")
		}
		if err := b.VerifyAll(ctx, nil); err != nil {
			t.Fatal(err)
		}
		if err := b.Save(ctx, again); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(must(os.ReadFile(one)), must(os.ReadFile(again))) {
			t.Fatal("the file changed on its way through the exploded form")
		}
		direct := filepath.Join(dir, "direct")
		if _, err := WriteDir(ctx, direct, template(r), sourcesOf(r), signersOf(r.signers...)...); err != nil {
			t.Fatal(err)
		}
		sameTree(t, exploded, direct)
	})
}

type fataler interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func sameTree(t fataler, a, b string) {
	read := func(dir string) map[string]string {
		out := map[string]string{}
		err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				rel, _ := filepath.Rel(dir, p)
				out[rel] = string(must(os.ReadFile(p)))
			}
			return err
		})
		if err != nil || len(out) < 2 {
			t.Fatal("unreadable tree", err, len(out))
		}
		return out
	}
	x, y := read(a), read(b)
	if len(x) != len(y) {
		t.Fatalf("%d and %d files", len(x), len(y))
	}
	for name := range x {
		if x[name] != y[name] {
			t.Fatalf("%q differs", name)
		}
	}
}

func checkContents(t fataler, b *Bundle, r *recipe) {
	t.Helper()
	for name, want := range r.contents {
		// First a piece, so that lazy checks start in the middle.
		from, n := int64(len(want)/3), int64(len(want)/5)
		part, err := b.Range(name, from, n)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(part, want[from:from+n]) {
			t.Fatalf("%q: wrong part", name)
		}
		got, err := b.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) || cap(got) != len(got) {
			t.Fatalf("%q: wrong content", name)
		}
	}
}

func TestRangeChecksItsArguments(t *testing.T) {
	r := baseRecipe()
	b, err := Open(writeTemp(t, r.build()), Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]int64{{-1, 1}, {0, 301}, {301, 0}, {300, 1}, {1, 1<<63 - 1}, {0, -1}} {
		if _, err := b.Range("plan", c[0], c[1]); StepOf(err) != stepRelease {
			t.Errorf("Range(%d, %d): %v", c[0], c[1], err)
		}
	}
	if got, err := b.Range("plan", 300, 0); err != nil || len(got) != 0 {
		t.Errorf("empty range at the end: %v", err)
	}
	if _, err := b.Bytes("nothing"); StepOf(err) != stepRelease {
		t.Errorf("unknown blob: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := b.Bytes("plan"); StepOf(err) != stepRelease {
		t.Errorf("closed: %v", err)
	}
	if err := b.VerifyAll(ctx, nil); StepOf(err) != stepRelease {
		t.Errorf("closed: %v", err)
	}
}

func TestOpenWithoutTrustOrFile(t *testing.T) {
	path := writeTemp(t, baseRecipe().build())
	if _, err := Open(path, Options{}); StepOf(err) != stepKeyring {
		t.Errorf("no keyring: %v", err)
	}
	if _, err := Open(path, Options{Trust: &Keyring{Generation: 1}}); StepOf(err) != stepKeyring {
		t.Errorf("empty keyring: %v", err)
	}
	// A keyring built by hand gets the same checks as one from a file.
	twice := &Keyring{Generation: 1, Threshold: 2, Keys: []Key{keyA.Key, keyA.Key}}
	if _, err := Open(path, Options{Trust: twice}); StepOf(err) != stepKeyring {
		t.Errorf("one key twice: %v", err)
	}
	for _, generation := range []int64{0, -1, maxCounter + 1} {
		k := ring(1, keyA)
		k.Generation = generation
		if _, err := Open(path, Options{Trust: k}); StepOf(err) != stepKeyring {
			t.Errorf("generation %d: %v", generation, err)
		}
	}
	_, err := Open(path+"x", Options{Trust: ring(1, keyA)})
	if StepOf(err) != stepOpen || diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("missing file: %v", err)
	}
	if !strings.Contains(err.Error(), "x.hetbx") {
		t.Errorf("the message does not name the file: %v", err)
	}
}

// A wrong chunk of lazily checked weights is refused when it is touched and only then.
func TestLazyRefusesOnTouch(t *testing.T) {
	r := baseRecipe()
	r.add("big", RoleWeights, pattern(77, 40*testChunk+5))
	file := r.build()
	i, _ := r.manifest.blob("big")
	offset := must(Inspect(writeTemp(t, file))).Offsets[i]
	const bad = 17
	file[offset+bad*testChunk+100] ^= 4
	path := writeTemp(t, file)
	o := Options{Trust: ring(1, keyA)}
	b, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for c := range int64(41) {
		_, err := b.Range("big", c*testChunk, 5)
		if want := c == bad; want != (StepOf(err) == stepWeights) {
			t.Errorf("chunk %d: %v", c, err)
		}
		out := make([]byte, 5)
		err = b.CopyRange("big", c*testChunk, out)
		if want := c == bad; want != (StepOf(err) == stepWeights) {
			t.Errorf("copy of chunk %d: %v", c, err)
		}
		from := c * testChunk
		if copied := bytes.Equal(out, pattern(77, 40*testChunk+5)[from:from+5]); copied != (c != bad) {
			t.Errorf("copy of chunk %d: %v", c, out)
		}
	}
	if err := b.CopyRange("big", 40*testChunk, make([]byte, 6)); StepOf(err) != stepRelease {
		t.Errorf("copy beyond the end: %v", err)
	}
	if _, err := b.Range("big", bad*testChunk-1, 1); err != nil {
		t.Errorf("byte before the chunk: %v", err)
	}
	for range 2 {
		if _, err := b.Range("big", bad*testChunk-1, 2); StepOf(err) != stepWeights {
			t.Errorf("across the edge: %v", err)
		}
		if _, err := b.Bytes("big"); StepOf(err) != stepWeights || !strings.Contains(err.Error(), "chunk 17") {
			t.Errorf("whole: %v", err)
		}
	}
	if err := b.VerifyAll(ctx, nil); StepOf(err) != stepWeights {
		t.Errorf("full: %v", err)
	}
	if err := b.Extract(ctx, "big", filepath.Join(t.TempDir(), "out")); StepOf(err) != stepWeights {
		t.Errorf("extract: %v", err)
	}
	if _, err := b.Bytes("plan"); err != nil {
		t.Errorf("another blob: %v", err)
	}
	for _, mode := range []Mode{Eager, Copy} {
		o.Mode = mode
		if _, err := Open(path, o); StepOf(err) != stepWeights {
			t.Errorf("mode %d: %v", mode, err)
		}
	}
}

// Many goroutines touch overlapping ranges of good and bad blobs; run with -race.
func TestLazyIsSafeForConcurrentUse(t *testing.T) {
	r := baseRecipe()
	r.add("good", RoleWeights, pattern(5, 200*testChunk+9))
	r.add("zbad", RoleWeights, pattern(6, 100*testChunk))
	file := r.build()
	path := writeTemp(t, file)
	u := must(Inspect(path))
	bad, _ := r.manifest.blob("zbad")
	file[u.Offsets[bad]+50*testChunk] ^= 1
	damaged := writeTemp(t, file)
	o := Options{Trust: ring(1, keyA)}
	b, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	exploded := filepath.Join(t.TempDir(), "d")
	if err := b.Explode(ctx, exploded); err != nil {
		t.Fatal(err)
	}
	b.Close()
	for _, p := range []string{damaged, exploded} {
		b, err := Open(p, o)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for g := range uint64(16) {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(g, 2))
				for range 100 {
					size := int64(200*testChunk + 9)
					from := rng.Int64N(size)
					n := rng.Int64N(min(size-from, 10*testChunk) + 1)
					got, err := b.Range("good", from, n)
					if err != nil || !bytes.Equal(got, r.contents["good"][from:from+n]) {
						t.Errorf("good [%d, %d+%d): %v", from, from, n, err)
					}
					if p == damaged {
						from = rng.Int64N(100 * testChunk)
						n = 1 + rng.Int64N(min(100*testChunk-from, 60*testChunk))
						_, err = b.Range("zbad", from, n)
						if touches := from < 51*testChunk && from+n > 50*testChunk; touches != (err != nil) {
							t.Errorf("bad [%d, %d+%d): %v", from, from, n, err)
						}
					}
				}
			})
		}
		wg.Wait()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Truncation after opening ends in an error, not in a crash.
func TestTruncatedWhileOpen(t *testing.T) {
	r := baseRecipe()
	r.add("zz", RoleWeights, pattern(5, 100*testChunk))
	path := writeTemp(t, r.build())
	b, err := Open(path, Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := os.Truncate(path, 4096); err != nil {
		t.Skip("this system keeps mapped files from being truncated:", err)
	}
	if _, err := b.Bytes("zz"); diag.ClassOf(err) != diag.ClassIO || StepOf(err) != stepWeights {
		t.Errorf("got %v", err)
	}
	if err := b.VerifyAll(ctx, nil); err == nil {
		t.Error("verified a truncated file")
	}
	if got, err := b.Bytes("plan"); err != nil || !bytes.Equal(got, r.contents["plan"]) {
		t.Errorf("a copied blob is gone: %v", err)
	}
}

// Code-like blobs are copies: what happens to the file after opening does not reach them.
func TestCodeIsACopy(t *testing.T) {
	r := baseRecipe()
	path := writeTemp(t, r.build())
	for _, mode := range []Mode{Lazy, Copy} {
		b, err := Open(path, Options{Trust: ring(1, keyA), Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, len(r.build())), 0o600); err != nil {
			t.Fatal(err)
		}
		names := []string{"plan", "graph/npu"}
		if mode == Copy {
			names = append(names, "weights/000", "weights/001")
		}
		for _, n := range names {
			if got, err := b.Bytes(n); err != nil || !bytes.Equal(got, r.contents[n]) {
				t.Errorf("mode %d: %q changed: %v", mode, n, err)
			}
		}
		b.Close()
		if err := os.WriteFile(path, r.build(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestExtract(t *testing.T) {
	r := baseRecipe()
	b, err := Open(writeTemp(t, r.build()), Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	dir := t.TempDir()
	path := filepath.Join(dir, "w")
	if err := b.Extract(ctx, "weights/000", path); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(must(os.ReadFile(path)), r.contents["weights/000"]) {
		t.Error("wrong content")
	}
	if mode := must(os.Stat(path)).Mode().Perm(); mode != 0o600 {
		t.Errorf("permissions %#o", mode)
	}
	if err := b.Extract(ctx, "weights/001", path); err == nil {
		t.Error("an existing file was overwritten")
	}
	if !bytes.Equal(must(os.ReadFile(path)), r.contents["weights/000"]) {
		t.Error("the existing file was changed")
	}
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	if err := b.Extract(stopped, "weights/001", filepath.Join(dir, "x")); diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("cancelled: %v", err)
	}
	noLeftovers(t, dir, "w")
}

// Nothing is left behind by a failed write, and an older file stays.
func TestFailedWriteLeavesNothing(t *testing.T) {
	r := baseRecipe()
	good := sourcesOf(r)
	boom := errors.New("boom")
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	with := func(s Source) []Source { return append(slices.Clone(good), s) }
	broken := func(name string, f func(io.Writer) error) []Source {
		return with(Source{Name: name, Role: RoleWeights, Bytes: 100, Write: f})
	}
	wrongKey := Signer{Key: keyA.Key, Sign: keyC.signer().Sign}
	cases := map[string]struct {
		ctx     context.Context
		sources []Source
		signers []Signer
		edit    func(*Manifest)
		class   diag.Class
	}{
		"no signer":         {sources: good, signers: []Signer{}, class: diag.ClassInput},
		"same signer twice": {sources: good, signers: signersOf(keyA, keyA), class: diag.ClassInput},
		"wrong key":         {sources: good, signers: []Signer{wrongKey}, class: diag.ClassVerify},
		"signer fails":      {sources: good, signers: []Signer{{Key: keyA.Key, Sign: func([]byte) ([]byte, error) { return nil, boom }}}, class: diag.ClassInternal},
		"signer is nil":     {sources: good, signers: []Signer{{Key: keyA.Key}}, class: diag.ClassInput},
		"signer has no key": {sources: good, signers: []Signer{{Sign: keyA.signer().Sign}}, class: diag.ClassInput},
		"nine signers":      {sources: good, signers: make([]Signer, 9), class: diag.ClassInput},
		"cancelled":         {ctx: stopped, sources: good, class: diag.ClassInterrupted},
		"source fails":      {sources: broken("zz", func(io.Writer) error { return boom }), class: diag.ClassInternal},
		"source too short":  {sources: broken("zz", func(w io.Writer) error { _, err := w.Write(make([]byte, 99)); return err }), class: diag.ClassInput},
		"source too long": {sources: broken("zz", func(w io.Writer) error {
			_, _ = w.Write(make([]byte, 60))
			_, _ = w.Write(make([]byte, 60)) // the error is ignored by this source, not by Write
			return nil
		}), class: diag.ClassInput},
		"reader too short": {sources: with(Source{Name: "zz", Role: RoleWeights, Bytes: 9, Content: strings.NewReader("short")}), class: diag.ClassInput},
		"no content":       {sources: with(Source{Name: "zz", Role: RoleWeights, Bytes: 9}), class: diag.ClassInput},
		"two contents":     {sources: with(Source{Name: "zz", Role: RoleWeights, Content: strings.NewReader(""), Write: func(io.Writer) error { return nil }}), class: diag.ClassInput},
		"negative size":    {sources: with(Source{Name: "zz", Role: RoleWeights, Bytes: -1, Content: strings.NewReader("")}), class: diag.ClassInput},
		"repeated name":    {sources: with(good[0]), class: diag.ClassInput},
		"bad name":         {sources: with(Source{Name: "../zz", Role: RoleWeights, Content: strings.NewReader("")}), class: diag.ClassInput},
		"bad role":         {sources: with(Source{Name: "zz", Role: "x", Content: strings.NewReader("")}), class: diag.ClassInput},
		"no sources":       {sources: []Source{}, class: diag.ClassInput},
		"no product":       {sources: good, edit: func(m *Manifest) { m.Product = "" }, class: diag.ClassInput},
		"blobs given":      {sources: good, edit: func(m *Manifest) { m.Blobs = make([]Blob, 1) }, class: diag.ClassInput},
		"not ascii":        {sources: good, edit: func(m *Manifest) { m.Version = "é" }, class: diag.ClassInput},
		"quote":            {sources: good, edit: func(m *Manifest) { m.Annotations = map[string]string{"a": `"`} }, class: diag.ClassInput},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			old := filepath.Join(dir, "old.hetb")
			if err := os.WriteFile(old, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			if c.ctx == nil {
				c.ctx = ctx
			}
			if c.signers == nil {
				c.signers = signersOf(keyA)
			}
			m := template(r)
			if c.edit != nil {
				c.edit(&m)
			}
			for form, write := range map[string]func(context.Context, string, Manifest, []Source, ...Signer) (Digest, error){"file": Write, "dir": WriteDir} {
				for _, target := range []string{"new", "old.hetb"} {
					_, err := write(c.ctx, filepath.Join(dir, target), m, c.sources, c.signers...)
					if err == nil {
						t.Fatalf("%s: accepted", form)
					}
					if got := diag.ClassOf(err); got != c.class && target == "new" {
						t.Errorf("%s: class %d, want %d: %v", form, got, c.class, err)
					}
				}
			}
			noLeftovers(t, dir, "old.hetb")
			if string(must(os.ReadFile(old))) != "old" {
				t.Error("the old file was changed")
			}
		})
	}
}

func TestPanickingSourceLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_, _ = Write(ctx, filepath.Join(dir, "x"), Manifest{Product: "p", Entrypoint: "plan"},
			[]Source{{Name: "plan", Role: RolePlan, Bytes: 1, Write: func(io.Writer) error { panic("source") }}}, keyA.signer())
	}()
	noLeftovers(t, dir)
}

func TestWriteToMissingDirectory(t *testing.T) {
	r := baseRecipe()
	_, err := Write(ctx, filepath.Join(t.TempDir(), "none", "x"), template(r), sourcesOf(r), keyA.signer())
	if diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("got %v", err)
	}
}

// A second signature moves nothing but the envelope.
func TestSaveAddsASignature(t *testing.T) {
	r := baseRecipe()
	dir := t.TempDir()
	one, two := filepath.Join(dir, "1"), filepath.Join(dir, "2")
	id, err := Write(ctx, one, template(r), sourcesOf(r), keyA.signer())
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(one, Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Save(ctx, two, keyB.signer()); err != nil {
		t.Fatal(err)
	}
	if err := b.Save(ctx, filepath.Join(dir, "3"), keyA.signer()); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("one key signed twice: %v", err)
	}
	r.signers = []testKey{keyA, keyB}
	if !bytes.Equal(must(os.ReadFile(two)), r.build()) {
		t.Error("not what signing with both at once gives")
	}
	c, err := openAll(two, Options{Trust: ring(2, keyA, keyB)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Digest() != id || len(c.Signers()) != 2 {
		t.Error("another identity")
	}
	noLeftovers(t, dir, "1", "2")
}

func TestRatchet(t *testing.T) {
	path := writeTemp(t, baseRecipe().build())
	b, err := Open(path, Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	want := Ratchet{Product: "com.example.test", Generation: 1, SecurityVersion: 4}
	if got := b.Ratchet(); got != want {
		t.Errorf("got %+v", got)
	}
	r := b.Ratchet()
	again, err := Open(path, Options{Trust: ring(1, keyA), Policy: Policy{Stored: Ratchets{r}}})
	if err != nil {
		t.Fatal("refused by its own ratchet:", err)
	}
	again.Close()
}

// Every bit of the header, the envelope and the table; every truncation; extensions.
func TestEveryMutationIsRefused(t *testing.T) {
	require.Slow(t)
	t.Parallel()
	for _, keys := range [][]testKey{{keyA}, {keyA, keyB}} {
		r := baseRecipe()
		r.signers = keys
		data := r.build()
		path := writeTemp(t, data)
		l := layOut(&r.manifest, payloadBytes(t, data))
		o := Options{Trust: ring(int64(len(keys)), keys...)}
		if b, err := openAll(path, o); err != nil {
			t.Fatal(err)
		} else {
			b.Close()
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		steps := map[Step]int{}
		refused := func(what string, at int) {
			b, err := Open(path, o)
			if err == nil {
				b.Close()
				t.Fatalf("%s at %d accepted", what, at)
			}
			if StepOf(err) == "" || diag.ClassOf(err) != diag.ClassVerify {
				t.Fatalf("%s at %d: %v", what, at, err)
			}
			steps[StepOf(err)]++
		}
		envelope := headerBytes + int(binary.LittleEndian.Uint64(data[16:]))
		table := int(l.table)
		n := 0
		for _, part := range [][2]int{{0, envelope}, {table, table + leafBytes*int(l.leaves[len(l.leaves)-1])}} {
			for i := part[0]; i < part[1]; i++ {
				for bit := range 8 {
					if _, err := f.WriteAt([]byte{data[i] ^ 1<<bit}, int64(i)); err != nil {
						t.Fatal(err)
					}
					refused("bit flip", i)
					n++
				}
				if _, err := f.WriteAt(data[i:i+1], int64(i)); err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Logf("%d bit flips refused: %v", n, steps)
		if n < 8*(headerBytes+1000) {
			t.Errorf("only %d flips", n)
		}
	}
}

func payloadBytes(t *testing.T, file []byte) int {
	env, err := decodeEnvelope(file[headerBytes : headerBytes+binary.LittleEndian.Uint64(file[16:])])
	if err != nil {
		t.Fatal(err)
	}
	return len(must(env.open()))
}

func TestEveryTruncationIsRefused(t *testing.T) {
	require.Slow(t)
	t.Parallel()
	r := baseRecipe()
	data := r.build()
	path := writeTemp(t, data)
	o := Options{Trust: ring(1, keyA)}
	payload := payloadBytes(t, data)
	for n := range slices.Backward(data) {
		// Behind the envelope nothing but the layout step can tell, and it is a pure function of the
		// size: run it alone there, except now and then.
		if s := (&fileStore{bytes: int64(n), header: 1000}); n > 4096 && n%4096 > 2 {
			m := r.manifest
			if err := s.check(&m, payload); StepOf(err) != stepLayout {
				t.Fatalf("cut to %d bytes: %v", n, err)
			}
			continue
		}
		if err := os.Truncate(path, int64(n)); err != nil {
			t.Fatal(err)
		}
		b, err := Open(path, o)
		if err == nil {
			b.Close()
			t.Fatalf("cut to %d bytes: accepted", n)
		}
		if StepOf(err) == "" || diag.ClassOf(err) != diag.ClassVerify {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	for _, more := range []int{1, 64, pageAlign, len(data)} {
		b, err := Open(writeTemp(t, append(bytes.Clone(data), make([]byte, more)...)), o)
		if err == nil {
			b.Close()
		}
		if StepOf(err) != stepLayout {
			t.Errorf("%d bytes more: %v", more, err)
		}
	}
}

// A flipped bit in any region of the file is refused on opening, also where nothing is read from it later; in weights that
// are checked lazily, once they are used.
func TestFlipInEveryRegion(t *testing.T) {
	r := baseRecipe()
	for i, role := range []Role{RoleReport, RoleReference, RoleGPUKernel, roleRuntime, RoleTokenizer, RoleConfig, RoleSelfTest, RolePrefix} {
		r.add("other/"+string(role), role, pattern(byte(20+i), 777+i))
	}
	r.add("weights/002", RoleWeights, pattern(51, 70001))
	r.manifest.Blobs[len(r.manifest.Blobs)-1].Align = 2 * pageAlign
	r.add("zz", RoleWeights, pattern(52, 1))
	data := r.build()
	path := writeTemp(t, data)
	payload := payloadBytes(t, data)
	l := layOut(&r.manifest, payload)

	type region struct {
		name     string
		from, to int64
		step     Step // that refuses it
		lazy     bool // not before it is used
	}
	end := headerBytes + int64(binary.LittleEndian.Uint64(data[16:]))
	regions := []region{{name: "magic", to: 8, step: stepHeader}, {name: "version", from: 8, to: 12, step: stepHeader},
		{name: "flags", from: 12, to: 16, step: stepHeader}, {name: "envelope length", from: 16, to: 24},
		{name: "reserved", from: 24, to: headerBytes, step: stepHeader}, {name: "envelope", from: headerBytes, to: end}}
	// next adds what comes behind the padding in front of it.
	padded := 0
	next := func(x region) {
		if x.from > end {
			regions = append(regions, region{name: "padding in front of " + x.name, from: end, to: x.from, step: stepLayout})
			padded++
		}
		if end = x.to; x.from < x.to {
			regions = append(regions, x)
		}
	}
	next(region{name: "table", from: l.table, to: l.table + leafBytes*l.leaves[len(l.leaves)-1], step: stepTable})
	for i, b := range r.manifest.Blobs {
		x := region{name: "blob " + b.Name, from: l.offsets[i], to: l.offsets[i] + b.Bytes, step: stepCode}
		if b.Role.bulk() {
			x.step, x.lazy = stepWeights, true
		}
		next(x)
	}
	next(region{name: "end", from: l.size, to: l.size})
	if want := len(r.manifest.Blobs) + 2; padded < want-2 || end != int64(len(data)) {
		t.Fatalf("%d regions of padding, want %d or nearly; they end at %d of %d", padded, want, end, len(data))
	}

	file, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	defer file.Close()
	use := func(mode Mode) (opened bool, err error) {
		b, err := Open(path, Options{Trust: ring(1, keyA), Mode: mode})
		if err != nil {
			return false, err
		}
		defer b.Close()
		for _, blob := range r.manifest.Blobs {
			if _, err := b.Bytes(blob.Name); err != nil {
				return true, err
			}
		}
		return true, nil
	}
	random := rand.New(rand.NewPCG(3, 4))
	for _, x := range regions {
		for _, at := range []int64{x.from, x.to - 1, (x.from + x.to) / 2, x.from + random.Int64N(x.to-x.from), x.from + random.Int64N(x.to-x.from)} {
			for _, mode := range []Mode{Lazy, Eager, Copy} {
				bad := data[at] ^ 1<<random.IntN(8)
				_, err := file.WriteAt([]byte{bad}, at)
				check(t, err)
				opened, err := use(mode)
				switch {
				case err == nil:
					t.Fatalf("%s: %#02x for %#02x at %d is accepted, mode %d", x.name, bad, data[at], at, mode)
				case opened != (x.lazy && mode == Lazy), diag.ClassOf(err) != diag.ClassVerify, StepOf(err) == "",
					x.step != "" && StepOf(err) != x.step:
					t.Errorf("%s, mode %d: opened %v, refused with %q: %v", x.name, mode, opened, StepOf(err), err)
				case x.step == stepLayout && !strings.Contains(err.Error(), fmt.Sprintf("padding byte at offset %d is", at)):
					t.Errorf("%s: want the offset %d in %v", x.name, at, err)
				}
				_, err = file.WriteAt(data[at:at+1], at)
				check(t, err)
			}
		}
	}
	for _, mode := range []Mode{Lazy, Eager, Copy} {
		if _, err := use(mode); err != nil {
			t.Errorf("put back: %v", err)
		}
	}
}

// Random bit flips anywhere in the blobs, and anywhere in the file.
func TestRandomFlipsAreRefused(t *testing.T) {
	require.Slow(t)
	t.Parallel()
	r := baseRecipe()
	r.add("a/report", RoleReport, pattern(50, 3000))
	r.add("zz", RoleWeights, pattern(51, 70000))
	data := r.build()
	path := writeTemp(t, data)
	u := must(Inspect(path))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rng := rand.New(rand.NewPCG(7, 7))
	steps := map[Step]int{}
	flip := func(i int64, o Options) Step {
		if _, err := f.WriteAt([]byte{data[i] ^ 1<<rng.IntN(8)}, i); err != nil {
			t.Fatal(err)
		}
		b, err := openAll(path, o)
		if err == nil {
			b.Close()
			t.Fatalf("flip at %d accepted", i)
		}
		if _, err := f.WriteAt(data[i:i+1], i); err != nil {
			t.Fatal(err)
		}
		steps[StepOf(err)]++
		return StepOf(err)
	}
	for n := range 1000 {
		k := rng.IntN(len(r.manifest.Blobs))
		b := r.manifest.Blobs[k]
		want := stepCode
		if b.Role.bulk() {
			want = stepWeights
		}
		if got := flip(u.Offsets[k]+rng.Int64N(b.Bytes), Options{Trust: ring(1, keyA), Mode: Mode(n % 3)}); got != want {
			t.Fatalf("blob %q: refused by %q, want %q", b.Name, got, want)
		}
	}
	t.Log(steps)
	for range 1000 {
		if flip(rng.Int64N(int64(len(data))), Options{Trust: ring(1, keyA)}) == "" {
			t.Fatal("no step")
		}
	}
}

// The exploded form against everything a directory can hold.
func TestExplodedRefusals(t *testing.T) {
	r := baseRecipe()
	blob := func(dir, name string) string { return blobFile(r, dir, name) }
	rewrite := func(t *testing.T, path string, edit func([]byte) []byte) {
		t.Helper()
		if err := os.WriteFile(path, edit(must(os.ReadFile(path))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refuseExploded(t, r, map[string]damage{
		"extra file": {stepLayout, func(t *testing.T, d string) { check(t, os.WriteFile(filepath.Join(d, "x"), nil, 0o600)) }},
		"extra blob": {stepLayout, func(t *testing.T, d string) {
			check(t, os.WriteFile(filepath.Join(d, dirBlobs, strings.Repeat("0", 64)), nil, 0o600))
		}},
		"missing plan":    {stepLayout, func(t *testing.T, d string) { check(t, os.Remove(blob(d, "plan"))) }},
		"missing weights": {stepLayout, func(t *testing.T, d string) { check(t, os.Remove(blob(d, "weights/000"))) }},
		"blob under wrong name": {stepLayout, func(t *testing.T, d string) {
			check(t, os.Rename(blob(d, "plan"), filepath.Join(d, dirBlobs, strings.Repeat("0", 64))))
		}},
		"upper-case name": {stepLayout, func(t *testing.T, d string) {
			p := blob(d, "plan")
			check(t, os.Rename(p, filepath.Join(filepath.Dir(p), strings.ToUpper(filepath.Base(p)))))
		}},
		"plan cut": {stepLayout, func(t *testing.T, d string) {
			rewrite(t, blob(d, "plan"), func(b []byte) []byte { return b[:len(b)-1] })
		}},
		"weights longer": {stepLayout, func(t *testing.T, d string) {
			rewrite(t, blob(d, "weights/000"), func(b []byte) []byte { return append(b, 0) })
		}},
		"plan changed": {stepCode, func(t *testing.T, d string) {
			rewrite(t, blob(d, "plan"), func(b []byte) []byte { b[9] ^= 1; return b })
		}},
		"weights changed": {stepWeights, func(t *testing.T, d string) {
			rewrite(t, blob(d, "weights/001"), func(b []byte) []byte { b[9] ^= 1; return b })
		}},
		"blobs swapped": {stepLayout, func(t *testing.T, d string) {
			a, b := blob(d, "weights/000"), blob(d, "weights/001")
			check(t, os.Rename(a, a+"x"))
			check(t, os.Rename(b, a))
			check(t, os.Rename(a+"x", b))
		}},
		"directory for a blob": {stepOpen, func(t *testing.T, d string) {
			p := blob(d, "plan")
			check(t, os.Remove(p))
			check(t, os.Mkdir(p, 0o700))
		}},
		"no blob directory": {stepOpen, func(t *testing.T, d string) { check(t, os.RemoveAll(filepath.Join(d, dirBlobs))) }},
		"no manifest":       {stepOpen, func(t *testing.T, d string) { check(t, os.Remove(filepath.Join(d, dirManifest))) }},
		"empty manifest": {stepHeader, func(t *testing.T, d string) {
			rewrite(t, filepath.Join(d, dirManifest), func([]byte) []byte { return nil })
		}},
		"huge manifest": {stepHeader, func(t *testing.T, d string) { check(t, os.Truncate(filepath.Join(d, dirManifest), maxEnvelopeBytes+1)) }},
		"manifest with line feed": {stepEnvelope, func(t *testing.T, d string) {
			rewrite(t, filepath.Join(d, dirManifest), func(b []byte) []byte { return append(b, '\n') })
		}},
		"manifest changed": {StepSignature, func(t *testing.T, d string) {
			rewrite(t, filepath.Join(d, dirManifest), func(b []byte) []byte { b[30] ^= 4; return b })
		}},
	})
}

// damage is a change to an exploded bundle and the step that must refuse it.
type damage struct {
	step Step
	edit func(t *testing.T, dir string)
}

func blobFile(r *recipe, dir, name string) string {
	return filepath.Join(dir, dirBlobs, Digest(sha256.Sum256(r.contents[name])).String())
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refuseExploded(t *testing.T, r *recipe, cases map[string]damage) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			if _, err := WriteDir(ctx, dir, template(r), sourcesOf(r), keyA.signer()); err != nil {
				t.Fatal(err)
			}
			if b, err := openAll(dir, Options{Trust: ring(1, keyA)}); err != nil {
				t.Fatal(err)
			} else {
				b.Close()
			}
			c.edit(t, dir)
			for _, mode := range []Mode{Lazy, Eager, Copy} {
				_, err := openAll(dir, Options{Trust: ring(1, keyA), Mode: mode})
				if StepOf(err) != c.step {
					t.Errorf("mode %d: got %v, want a refusal by %q", mode, err, c.step)
				}
			}
		})
	}
}

// A file that was exchanged between looking and opening.
func TestOpenNoticesAReplacedFile(t *testing.T) {
	one, two := writeTemp(t, []byte("1")), writeTemp(t, []byte("2"))
	before := must(os.Lstat(one))
	f := must(os.Open(two))
	defer f.Close()
	if _, err := regular(f, before); StepOf(err) != stepOpen {
		t.Errorf("got %v", err)
	}
}

func TestOpenNoticesAReplacedDirectory(t *testing.T) {
	r := baseRecipe()
	dir := filepath.Join(t.TempDir(), "d")
	if _, err := WriteDir(ctx, dir, template(r), sourcesOf(r), keyA.signer()); err != nil {
		t.Fatal(err)
	}
	if _, err := openDir(dir, must(os.Lstat(t.TempDir()))); StepOf(err) != stepOpen {
		t.Errorf("got %v", err)
	}
}

// A file that shrinks between the layout step and the mapping is an error, not a panic.
func TestMappingNoticesAnotherSize(t *testing.T) {
	r := baseRecipe()
	file := writeTemp(t, r.build())
	dir := filepath.Join(t.TempDir(), "d")
	if _, err := WriteDir(ctx, dir, template(r), sourcesOf(r), keyA.signer()); err != nil {
		t.Fatal(err)
	}
	for path, cut := range map[string]string{file: file, dir: blobFile(r, dir, "weights/000")} {
		s, err := openStore(path)
		if err != nil {
			t.Fatal(err)
		}
		env := must(decodeEnvelope(must(s.envelope())))
		payload := must(env.open())
		m := must(decodeManifest(payload))
		if err := s.check(m, len(payload)); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(cut, 100); err != nil {
			t.Fatal(err)
		}
		if _, err := s.mapped(m, 2); StepOf(err) == "" {
			t.Errorf("%s: got %v", path, err)
		}
		if err := s.copyBlob(m, 2, make([]byte, m.Blobs[2].Bytes), stepWeights); StepOf(err) == "" {
			t.Errorf("%s: got %v", path, err)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}

// A blob of more than 8 GiB, all holes: as weights it opens at once and its last chunk can be
// read; as a plan it is refused before anything is allocated for it.
func TestVeryLargeBlobs(t *testing.T) {
	const size, chunk = maxCopyBytes + 1, maxChunk
	if mem.MaxBytes < size {
		t.Skip("the address space is too small")
	}
	full, last := Digest(sha256.Sum256(make([]byte, chunk))), Digest(sha256.Sum256([]byte{0}))
	leaves := append(slices.Repeat([]Digest{full}, maxCopyBytes/chunk), last)
	for _, role := range []Role{RoleWeights, RolePlan} {
		r := baseRecipe()
		m := r.manifest
		m.ChunkBytes = chunk
		plan := sha256.Sum256(r.contents["plan"])
		m.Blobs = []Blob{
			{Name: "big", Role: role, Type: "t", Bytes: size, Align: pageAlign, Root: rootOf(size, chunk, leaves)},
			{Name: "plan", Role: RolePlan, Type: "t", Bytes: 300, Align: 64, SHA256: plan, Root: rootOf(300, chunk, []Digest{plan})},
		}
		payload := must(m.Encode())
		l := layOut(&m, len(payload))
		w := &writer{signers: signersOf(keyA)}
		envelope := must(w.sign(payload))
		path := filepath.Join(t.TempDir(), "big.hetb")
		f := must(wholefile.Create(path))
		if err := f.Truncate(l.size); err != nil {
			check(t, f.Abandon())
			t.Skip("no room for a file with holes here:", err)
		}
		form := &fileForm{file: f, layout: l}
		if err := form.finish(envelope, append(slices.Clone(leaves), plan)); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(r.contents["plan"], l.offsets[1]); err != nil {
			t.Fatal(err)
		}
		check(t, form.commit())
		b, err := Open(path, Options{Trust: ring(1, keyA)})
		if role == RolePlan {
			if StepOf(err) != stepCode {
				t.Errorf("plan: got %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := b.Range("big", size-1, 1); err != nil || got[0] != 0 {
			t.Errorf("last byte: %v", err)
		}
		if got, err := b.Bytes("plan"); err != nil || !bytes.Equal(got, r.contents["plan"]) {
			t.Errorf("plan: %v", err)
		}
		b.Close()
	}
}

func TestVerifyAllReportsProgressAndStops(t *testing.T) {
	r := baseRecipe()
	b, err := Open(writeTemp(t, r.build()), Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var last, total int64
	if err := b.VerifyAll(ctx, func(d, all int64) {
		if d < last {
			t.Error("progress runs backwards")
		}
		last, total = d, all
	}); err != nil {
		t.Fatal(err)
	}
	if want := int64(5000 + 300 + 3*testChunk + 17 + 2*testChunk); last != want || total != want {
		t.Errorf("progress ended at %d of %d, want %d", last, total, want)
	}
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	if err := b.VerifyAll(stopped, nil); diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("got %v", err)
	}
}

// Everything wrong with the target is named at once, with a way out.
func TestMismatchNamesEverything(t *testing.T) {
	r := baseRecipe()
	fullManifest(r)
	_, err := Open(writeTemp(t, r.build()), Options{Trust: ring(1, keyA), Policy: Policy{Runtime: "2"}, Host: &Host{OS: "plan9", Arch: "amd64"}})
	if StepOf(err) != stepPolicy {
		t.Fatal(err)
	}
	for _, part := range []string{"soc", "plan9", "amd64", "asimd", "i8mm", "memory", "driver/npu", "library/onnxruntime"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %q", part, err)
		}
	}
	if len(diag.HintsOf(err)) == 0 {
		t.Error("no hint")
	}
}
