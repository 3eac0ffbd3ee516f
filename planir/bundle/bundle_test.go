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

func sourcesOf(given *recipe) []Source {
	var out []Source
	for _, blob := range given.manifest.Blobs {
		content := given.contents[blob.Name]
		out = append(out, Source{Name: blob.Name, Role: blob.Role, Type: blob.Type, Bytes: blob.Bytes,
			Align: blob.Align, Content: bytes.NewReader(content)})
	}
	return out
}

func template(r *recipe) Manifest {
	manifest := r.manifest
	manifest.Blobs = nil
	return manifest
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
		recipe := baseRecipe()
		fullManifest(recipe)
		recipe.signers = keys
		dir := t.TempDir()
		path := filepath.Join(dir, "x.hetb")
		id, err := Write(ctx, path, template(recipe), sourcesOf(recipe), signersOf(keys...)...)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, recipe.build()) {
			t.Error("files differ")
		}
		unverified, err := Inspect(path)
		if err != nil {
			t.Fatal(err)
		}
		if unverified.Digest != id || unverified.Bytes != int64(len(got)) || len(unverified.Signers) != len(keys) ||
			unverified.Offsets[0]%64 != 0 {
			t.Errorf("inspect says %+v", unverified)
		}
		noLeftovers(t, dir, "x.hetb")
	}
}

// Order of sources and signers, the directory, processors, time zone: nothing of it shows.
func TestWriteIsDeterministic(t *testing.T) {
	recipe := baseRecipe()
	fullManifest(recipe)
	write := func() []byte {
		path := filepath.Join(t.TempDir(), "another name.hetb")
		if _, err := Write(ctx, path, template(recipe), sourcesOf(recipe), signersOf(keyA, keyB)...); err != nil {
			t.Fatal(err)
		}
		return must(os.ReadFile(path))
	}
	want := write()
	t.Setenv("TZ", "Asia/Kathmandu")
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	old := recipe.manifest.Blobs
	for seed := range uint64(5) {
		recipe.manifest.Blobs = slices.Clone(old)
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(old), func(i, j int) {
			b := recipe.manifest.Blobs
			b[i], b[j] = b[j], b[i]
		})
		if !bytes.Equal(write(), want) {
			t.Fatal("bytes differ")
		}
	}
}

func drawRecipe(t *rapid.T) *recipe {
	given := baseRecipe()
	if rapid.Bool().Draw(t, "full") {
		fullManifest(given)
	}
	given.manifest.ChunkBytes = 1 << rapid.IntRange(12, 20).Draw(t, "chunk")
	given.signers = [][]testKey{{keyA}, {keyB}, {keyA, keyB, keyC}}[rapid.IntRange(0, 2).Draw(t, "signers")]
	names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9]{1,4}(/[a-z0-9._-]{1,3}x)?`), 0, 6,
		rapid.ID[string]).Draw(t, "names")
	roles := []Role{RolePlan, RoleNPUGraph, RoleGPUKernel, roleRuntime, RoleWeights, RoleTokenizer, RoleConfig,
		RoleReference, RoleReport}
	for _, n := range names {
		if _, taken := given.contents[n]; taken {
			continue
		}
		size := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(4090, 4100), rapid.IntRange(0, 200000)).Draw(t,
			"size")
		given.add(n, rapid.SampledFrom(roles).Draw(t, "role"), pattern(rapid.Byte().Draw(t, "seed"), size))
		b, _ := given.manifest.blob(n)
		given.manifest.Blobs[b].Align = max(given.manifest.Blobs[b].Align, 1<<rapid.IntRange(6, 18).Draw(t, "align"))
	}
	return given
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
		recipe := drawRecipe(t)
		one := filepath.Join(dir, "one.hetb")
		id, err := Write(ctx, one, template(recipe), sourcesOf(recipe), signersOf(recipe.signers...)...)
		if err != nil {
			t.Fatal(err)
		}
		options := Options{Trust: ring(int64(len(recipe.signers)), recipe.signers...), Policy: Policy{Runtime: "9"}}
		exploded, again := filepath.Join(dir, "exploded"), filepath.Join(dir, "again.hetb")
		options.Mode = Mode(rapid.IntRange(0, 2).Draw(t, "mode"))
		opened, err := Open(one, options)
		if err != nil {
			t.Fatal(err)
		}
		checkContents(t, opened, recipe)
		if err := opened.Explode(ctx, exploded); err != nil {
			t.Fatal(err)
		}
		if err := opened.Close(); err != nil {
			t.Fatal(err)
		}
		if opened, err = Open(exploded, options); err != nil {
			t.Fatal(err)
		}
		checkContents(t, opened, recipe)
		if opened.Digest() != id {
			t.Fatal("another identity")
		}
		if err := opened.VerifyAll(ctx, nil); err != nil {
			t.Fatal(err)
		}
		if err := opened.Save(ctx, again); err != nil {
			t.Fatal(err)
		}
		if err := opened.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(must(os.ReadFile(one)), must(os.ReadFile(again))) {
			t.Fatal("the file changed on its way through the exploded form")
		}
		direct := filepath.Join(dir, "direct")
		if _, err := WriteDir(ctx, direct, template(recipe), sourcesOf(recipe),
			signersOf(recipe.signers...)...); err != nil {
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

func checkContents(t fataler, opened *Bundle, given *recipe) {
	t.Helper()
	for name, want := range given.contents {
		// First a piece, so that lazy checks start in the middle.
		from, n := int64(len(want)/3), int64(len(want)/5)
		part, err := opened.Range(name, from, n)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(part, want[from:from+n]) {
			t.Fatalf("%q: wrong part", name)
		}
		got, err := opened.Bytes(name)
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
	opened, err := Open(writeTemp(t, r.build()), Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]int64{{-1, 1}, {0, 301}, {301, 0}, {300, 1}, {1, 1<<63 - 1}, {0, -1}} {
		if _, err := opened.Range("plan", c[0], c[1]); StepOf(err) != stepRelease {
			t.Errorf("Range(%d, %d): %v", c[0], c[1], err)
		}
	}
	if got, err := opened.Range("plan", 300, 0); err != nil || len(got) != 0 {
		t.Errorf("empty range at the end: %v", err)
	}
	if _, err := opened.Bytes("nothing"); StepOf(err) != stepRelease {
		t.Errorf("unknown blob: %v", err)
	}
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
	if err := opened.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := opened.Bytes("plan"); StepOf(err) != stepRelease {
		t.Errorf("closed: %v", err)
	}
	if err := opened.VerifyAll(ctx, nil); StepOf(err) != stepRelease {
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
		keyring := ring(1, keyA)
		keyring.Generation = generation
		if _, err := Open(path, Options{Trust: keyring}); StepOf(err) != stepKeyring {
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
	recipe := baseRecipe()
	recipe.add("big", RoleWeights, pattern(77, 40*testChunk+5))
	file := recipe.build()
	i, _ := recipe.manifest.blob("big")
	offset := must(Inspect(writeTemp(t, file))).Offsets[i]
	const bad = 17
	file[offset+bad*testChunk+100] ^= 4
	path := writeTemp(t, file)
	options := Options{Trust: ring(1, keyA)}
	opened, err := Open(path, options)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	for c := range int64(41) {
		_, err := opened.Range("big", c*testChunk, 5)
		if want := c == bad; want != (StepOf(err) == stepWeights) {
			t.Errorf("chunk %d: %v", c, err)
		}
		out := make([]byte, 5)
		err = opened.CopyRange("big", c*testChunk, out)
		if want := c == bad; want != (StepOf(err) == stepWeights) {
			t.Errorf("copy of chunk %d: %v", c, err)
		}
		from := c * testChunk
		if copied := bytes.Equal(out, pattern(77, 40*testChunk+5)[from:from+5]); copied != (c != bad) {
			t.Errorf("copy of chunk %d: %v", c, out)
		}
	}
	if err := opened.CopyRange("big", 40*testChunk, make([]byte, 6)); StepOf(err) != stepRelease {
		t.Errorf("copy beyond the end: %v", err)
	}
	if _, err := opened.Range("big", bad*testChunk-1, 1); err != nil {
		t.Errorf("byte before the chunk: %v", err)
	}
	for range 2 {
		if _, err := opened.Range("big", bad*testChunk-1, 2); StepOf(err) != stepWeights {
			t.Errorf("across the edge: %v", err)
		}
		if _, err := opened.Bytes("big"); StepOf(err) != stepWeights || !strings.Contains(err.Error(), "chunk 17") {
			t.Errorf("whole: %v", err)
		}
	}
	if err := opened.VerifyAll(ctx, nil); StepOf(err) != stepWeights {
		t.Errorf("full: %v", err)
	}
	if err := opened.Extract(ctx, "big", filepath.Join(t.TempDir(), "out")); StepOf(err) != stepWeights {
		t.Errorf("extract: %v", err)
	}
	if _, err := opened.Bytes("plan"); err != nil {
		t.Errorf("another blob: %v", err)
	}
	for _, mode := range []Mode{Eager, Copy} {
		options.Mode = mode
		if _, err := Open(path, options); StepOf(err) != stepWeights {
			t.Errorf("mode %d: %v", mode, err)
		}
	}
}

// Many goroutines touch overlapping ranges of good and bad blobs; run with -race.
func TestLazyIsSafeForConcurrentUse(t *testing.T) {
	recipe := baseRecipe()
	recipe.add("good", RoleWeights, pattern(5, 200*testChunk+9))
	recipe.add("zbad", RoleWeights, pattern(6, 100*testChunk))
	file := recipe.build()
	path := writeTemp(t, file)
	unverified := must(Inspect(path))
	bad, _ := recipe.manifest.blob("zbad")
	file[unverified.Offsets[bad]+50*testChunk] ^= 1
	damaged := writeTemp(t, file)
	options := Options{Trust: ring(1, keyA)}
	opened, err := Open(path, options)
	if err != nil {
		t.Fatal(err)
	}
	exploded := filepath.Join(t.TempDir(), "d")
	if err := opened.Explode(ctx, exploded); err != nil {
		t.Fatal(err)
	}
	opened.Close()
	for _, p := range []string{damaged, exploded} {
		bundled, err := Open(p, options)
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
					got, err := bundled.Range("good", from, n)
					if err != nil || !bytes.Equal(got, recipe.contents["good"][from:from+n]) {
						t.Errorf("good [%d, %d+%d): %v", from, from, n, err)
					}
					if p == damaged {
						from = rng.Int64N(100 * testChunk)
						n = 1 + rng.Int64N(min(100*testChunk-from, 60*testChunk))
						_, err = bundled.Range("zbad", from, n)
						if touches := from < 51*testChunk && from+n > 50*testChunk; touches != (err != nil) {
							t.Errorf("bad [%d, %d+%d): %v", from, from, n, err)
						}
					}
				}
			})
		}
		wg.Wait()
		if err := bundled.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Truncation after opening ends in an error, not in a crash.
func TestTruncatedWhileOpen(t *testing.T) {
	recipe := baseRecipe()
	recipe.add("zz", RoleWeights, pattern(5, 100*testChunk))
	path := writeTemp(t, recipe.build())
	opened, err := Open(path, Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if err := os.Truncate(path, 4096); err != nil {
		t.Skip("this system keeps mapped files from being truncated:", err)
	}
	if _, err := opened.Bytes("zz"); diag.ClassOf(err) != diag.ClassIO || StepOf(err) != stepWeights {
		t.Errorf("got %v", err)
	}
	if err := opened.VerifyAll(ctx, nil); err == nil {
		t.Error("verified a truncated file")
	}
	if got, err := opened.Bytes("plan"); err != nil || !bytes.Equal(got, recipe.contents["plan"]) {
		t.Errorf("a copied blob is gone: %v", err)
	}
}

// Code-like blobs are copies: what happens to the file after opening does not reach them.
func TestCodeIsACopy(t *testing.T) {
	recipe := baseRecipe()
	path := writeTemp(t, recipe.build())
	for _, mode := range []Mode{Lazy, Copy} {
		opened, err := Open(path, Options{Trust: ring(1, keyA), Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, len(recipe.build())), 0o600); err != nil {
			t.Fatal(err)
		}
		names := []string{"plan", "graph/npu"}
		if mode == Copy {
			names = append(names, "weights/000", "weights/001")
		}
		for _, n := range names {
			if got, err := opened.Bytes(n); err != nil || !bytes.Equal(got, recipe.contents[n]) {
				t.Errorf("mode %d: %q changed: %v", mode, n, err)
			}
		}
		opened.Close()
		if err := os.WriteFile(path, recipe.build(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestExtract(t *testing.T) {
	recipe := baseRecipe()
	opened, err := Open(writeTemp(t, recipe.build()), Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	dir := t.TempDir()
	path := filepath.Join(dir, "w")
	if err := opened.Extract(ctx, "weights/000", path); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(must(os.ReadFile(path)), recipe.contents["weights/000"]) {
		t.Error("wrong content")
	}
	if mode := must(os.Stat(path)).Mode().Perm(); mode != 0o600 {
		t.Errorf("permissions %#o", mode)
	}
	if err := opened.Extract(ctx, "weights/001", path); err == nil {
		t.Error("an existing file was overwritten")
	}
	if !bytes.Equal(must(os.ReadFile(path)), recipe.contents["weights/000"]) {
		t.Error("the existing file was changed")
	}
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	if err := opened.Extract(stopped, "weights/001", filepath.Join(dir, "x")); diag.ClassOf(
		err) != diag.ClassInterrupted {
		t.Errorf("cancelled: %v", err)
	}
	noLeftovers(t, dir, "w")
}

// Nothing is left behind by a failed write, and an older file stays.
func TestFailedWriteLeavesNothing(t *testing.T) {
	recipe := baseRecipe()
	good := sourcesOf(recipe)
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
		"signer fails": {sources: good,
			signers: []Signer{{Key: keyA.Key, Sign: func([]byte) ([]byte, error) { return nil, boom }}},
			class:   diag.ClassInternal},
		"signer is nil":     {sources: good, signers: []Signer{{Key: keyA.Key}}, class: diag.ClassInput},
		"signer has no key": {sources: good, signers: []Signer{{Sign: keyA.signer().Sign}}, class: diag.ClassInput},
		"nine signers":      {sources: good, signers: make([]Signer, 9), class: diag.ClassInput},
		"cancelled":         {ctx: stopped, sources: good, class: diag.ClassInterrupted},
		"source fails":      {sources: broken("zz", func(io.Writer) error { return boom }), class: diag.ClassInternal},
		"source too short": {sources: broken("zz",
			func(w io.Writer) error { _, err := w.Write(make([]byte, 99)); return err }), class: diag.ClassInput},
		"source too long": {sources: broken("zz", func(w io.Writer) error {
			_, _ = w.Write(make([]byte, 60))
			_, _ = w.Write(make([]byte, 60)) // the error is ignored by this source, not by Write
			return nil
		}), class: diag.ClassInput},
		"reader too short": {sources: with(Source{Name: "zz", Role: RoleWeights, Bytes: 9,
			Content: strings.NewReader("short")}), class: diag.ClassInput},
		"no content": {sources: with(Source{Name: "zz", Role: RoleWeights, Bytes: 9}), class: diag.ClassInput},
		"two contents": {sources: with(Source{Name: "zz", Role: RoleWeights, Content: strings.NewReader(""),
			Write: func(io.Writer) error { return nil }}), class: diag.ClassInput},
		"negative size": {sources: with(Source{Name: "zz", Role: RoleWeights, Bytes: -1,
			Content: strings.NewReader("")}), class: diag.ClassInput},
		"repeated name": {sources: with(good[0]), class: diag.ClassInput},
		"bad name": {sources: with(Source{Name: "../zz", Role: RoleWeights, Content: strings.NewReader("")}),
			class: diag.ClassInput},
		"bad role": {sources: with(Source{Name: "zz", Role: "x", Content: strings.NewReader("")}),
			class: diag.ClassInput},
		"no sources": {sources: []Source{}, class: diag.ClassInput},
		"no product": {sources: good, edit: func(m *Manifest) { m.Product = "" }, class: diag.ClassInput},
		"blobs given": {sources: good, edit: func(m *Manifest) { m.Blobs = make([]Blob, 1) },
			class: diag.ClassInput},
		"not ascii": {sources: good, edit: func(m *Manifest) { m.Version = "é" }, class: diag.ClassInput},
		"quote": {sources: good, edit: func(m *Manifest) { m.Annotations = map[string]string{"a": `"`} },
			class: diag.ClassInput},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			old := filepath.Join(dir, "old.hetb")
			if err := os.WriteFile(old, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			if test.ctx == nil {
				test.ctx = ctx
			}
			if test.signers == nil {
				test.signers = signersOf(keyA)
			}
			manifest := template(recipe)
			if test.edit != nil {
				test.edit(&manifest)
			}
			for form, write := range map[string]func(context.Context, string, Manifest, []Source, ...Signer) (Digest,
				error){"file": Write, "dir": WriteDir} {
				for _, target := range []string{"new", "old.hetb"} {
					_, err := write(test.ctx, filepath.Join(dir, target), manifest, test.sources, test.signers...)
					if err == nil {
						t.Fatalf("%s: accepted", form)
					}
					if got := diag.ClassOf(err); got != test.class && target == "new" {
						t.Errorf("%s: class %d, want %d: %v", form, got, test.class, err)
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
			[]Source{{Name: "plan", Role: RolePlan, Bytes: 1, Write: func(io.Writer) error { panic("source") }}},
			keyA.signer())
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
	recipe := baseRecipe()
	dir := t.TempDir()
	one, two := filepath.Join(dir, "1"), filepath.Join(dir, "2")
	id, err := Write(ctx, one, template(recipe), sourcesOf(recipe), keyA.signer())
	if err != nil {
		t.Fatal(err)
	}
	opened, err := Open(one, Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if err := opened.Save(ctx, two, keyB.signer()); err != nil {
		t.Fatal(err)
	}
	if err := opened.Save(ctx, filepath.Join(dir, "3"), keyA.signer()); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("one key signed twice: %v", err)
	}
	recipe.signers = []testKey{keyA, keyB}
	if !bytes.Equal(must(os.ReadFile(two)), recipe.build()) {
		t.Error("not what signing with both at once gives")
	}
	bundled, err := openAll(two, Options{Trust: ring(2, keyA, keyB)})
	if err != nil {
		t.Fatal(err)
	}
	defer bundled.Close()
	if bundled.Digest() != id || len(bundled.Signers()) != 2 {
		t.Error("another identity")
	}
	noLeftovers(t, dir, "1", "2")
}

func TestRatchet(t *testing.T) {
	path := writeTemp(t, baseRecipe().build())
	opened, err := Open(path, Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	want := Ratchet{Product: "com.example.test", Generation: 1, SecurityVersion: 4}
	if got := opened.Ratchet(); got != want {
		t.Errorf("got %+v", got)
	}
	r := opened.Ratchet()
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
		recipe := baseRecipe()
		recipe.signers = keys
		data := recipe.build()
		path := writeTemp(t, data)
		layout := layOut(&recipe.manifest, payloadBytes(t, data))
		options := Options{Trust: ring(int64(len(keys)), keys...)}
		if opened, err := openAll(path, options); err != nil {
			t.Fatal(err)
		} else {
			opened.Close()
		}
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		steps := map[Step]int{}
		refused := func(what string, at int) {
			opened, err := Open(path, options)
			if err == nil {
				opened.Close()
				t.Fatalf("%s at %d accepted", what, at)
			}
			if StepOf(err) == "" || diag.ClassOf(err) != diag.ClassVerify {
				t.Fatalf("%s at %d: %v", what, at, err)
			}
			steps[StepOf(err)]++
		}
		envelope := headerBytes + int(binary.LittleEndian.Uint64(data[16:]))
		table := int(layout.table)
		n := 0
		for _, part := range [][2]int{
			{0, envelope}, {table, table + leafBytes*int(layout.leaves[len(layout.leaves)-1])},
		} {
			for i := part[0]; i < part[1]; i++ {
				for bit := range 8 {
					if _, err := file.WriteAt([]byte{data[i] ^ 1<<bit}, int64(i)); err != nil {
						t.Fatal(err)
					}
					refused("bit flip", i)
					n++
				}
				if _, err := file.WriteAt(data[i:i+1], int64(i)); err != nil {
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
	recipe := baseRecipe()
	data := recipe.build()
	path := writeTemp(t, data)
	options := Options{Trust: ring(1, keyA)}
	payload := payloadBytes(t, data)
	for n := range slices.Backward(data) {
		// Behind the envelope nothing but the layout step can tell, and it is a pure function of the
		// size: run it alone there, except now and then.
		if s := (&fileStore{bytes: int64(n), header: 1000}); n > 4096 && n%4096 > 2 {
			m := recipe.manifest
			if err := s.check(&m, payload); StepOf(err) != stepLayout {
				t.Fatalf("cut to %d bytes: %v", n, err)
			}
			continue
		}
		if err := os.Truncate(path, int64(n)); err != nil {
			t.Fatal(err)
		}
		opened, err := Open(path, options)
		if err == nil {
			opened.Close()
			t.Fatalf("cut to %d bytes: accepted", n)
		}
		if StepOf(err) == "" || diag.ClassOf(err) != diag.ClassVerify {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	for _, more := range []int{1, 64, pageAlign, len(data)} {
		opened, err := Open(writeTemp(t, append(bytes.Clone(data), make([]byte, more)...)), options)
		if err == nil {
			opened.Close()
		}
		if StepOf(err) != stepLayout {
			t.Errorf("%d bytes more: %v", more, err)
		}
	}
}

// A flipped bit in any region of the file is refused on opening, also where nothing is read from it later; in weights
// that are checked lazily, once they are used.
func TestFlipInEveryRegion(t *testing.T) {
	recipe := baseRecipe()
	for i, role := range []Role{
		RoleReport, RoleReference, RoleGPUKernel, roleRuntime, RoleTokenizer, RoleConfig, RoleSelfTest, RolePrefix,
	} {
		recipe.add("other/"+string(role), role, pattern(byte(20+i), 777+i))
	}
	recipe.add("weights/002", RoleWeights, pattern(51, 70001))
	recipe.manifest.Blobs[len(recipe.manifest.Blobs)-1].Align = 2 * pageAlign
	recipe.add("zz", RoleWeights, pattern(52, 1))
	data := recipe.build()
	path := writeTemp(t, data)
	payload := payloadBytes(t, data)
	layout := layOut(&recipe.manifest, payload)

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
			regions = append(regions, region{name: "padding in front of " + x.name, from: end, to: x.from,
				step: stepLayout})
			padded++
		}
		if end = x.to; x.from < x.to {
			regions = append(regions, x)
		}
	}
	next(region{name: "table", from: layout.table, to: layout.table + leafBytes*layout.leaves[len(layout.leaves)-1],
		step: stepTable})
	for i, blob := range recipe.manifest.Blobs {
		x := region{name: "blob " + blob.Name, from: layout.offsets[i], to: layout.offsets[i] + blob.Bytes,
			step: stepCode}
		if blob.Role.bulk() {
			x.step, x.lazy = stepWeights, true
		}
		next(x)
	}
	next(region{name: "end", from: layout.size, to: layout.size})
	if want := len(recipe.manifest.Blobs) + 2; padded < want-2 || end != int64(len(data)) {
		t.Fatalf("%d regions of padding, want %d or nearly; they end at %d of %d", padded, want, end, len(data))
	}

	file, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	defer file.Close()
	use := func(mode Mode) (opened bool, err error) {
		bundled, err := Open(path, Options{Trust: ring(1, keyA), Mode: mode})
		if err != nil {
			return false, err
		}
		defer bundled.Close()
		for _, blob := range recipe.manifest.Blobs {
			if _, err := bundled.Bytes(blob.Name); err != nil {
				return true, err
			}
		}
		return true, nil
	}
	random := rand.New(rand.NewPCG(3, 4))
	for _, x := range regions {
		for _, at := range []int64{
			x.from, x.to - 1, (x.from + x.to) / 2, x.from + random.Int64N(x.to-x.from),
			x.from + random.Int64N(x.to-x.from),
		} {
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
				case x.step == stepLayout &&
					!strings.Contains(err.Error(), fmt.Sprintf("padding byte at offset %d is", at)):
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
	recipe := baseRecipe()
	recipe.add("a/report", RoleReport, pattern(50, 3000))
	recipe.add("zz", RoleWeights, pattern(51, 70000))
	data := recipe.build()
	path := writeTemp(t, data)
	unverified := must(Inspect(path))
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rng := rand.New(rand.NewPCG(7, 7))
	steps := map[Step]int{}
	flip := func(i int64, options Options) Step {
		if _, err := file.WriteAt([]byte{data[i] ^ 1<<rng.IntN(8)}, i); err != nil {
			t.Fatal(err)
		}
		opened, err := openAll(path, options)
		if err == nil {
			opened.Close()
			t.Fatalf("flip at %d accepted", i)
		}
		if _, err := file.WriteAt(data[i:i+1], i); err != nil {
			t.Fatal(err)
		}
		steps[StepOf(err)]++
		return StepOf(err)
	}
	for n := range 1000 {
		k := rng.IntN(len(recipe.manifest.Blobs))
		blob := recipe.manifest.Blobs[k]
		want := stepCode
		if blob.Role.bulk() {
			want = stepWeights
		}
		if got := flip(unverified.Offsets[k]+rng.Int64N(blob.Bytes),
			Options{Trust: ring(1, keyA), Mode: Mode(n % 3)}); got != want {
			t.Fatalf("blob %q: refused by %q, want %q", blob.Name, got, want)
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
	recipe := baseRecipe()
	blob := func(dir, name string) string { return blobFile(recipe, dir, name) }
	rewrite := func(t *testing.T, path string, edit func([]byte) []byte) {
		t.Helper()
		if err := os.WriteFile(path, edit(must(os.ReadFile(path))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refuseExploded(t, recipe, map[string]damage{
		"extra file": {stepLayout,
			func(t *testing.T, d string) { check(t, os.WriteFile(filepath.Join(d, "x"), nil, 0o600)) }},
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
		"no blob directory": {stepOpen,
			func(t *testing.T, d string) { check(t, os.RemoveAll(filepath.Join(d, dirBlobs))) }},
		"no manifest": {stepOpen,
			func(t *testing.T, d string) { check(t, os.Remove(filepath.Join(d, dirManifest))) }},
		"empty manifest": {stepHeader, func(t *testing.T, d string) {
			rewrite(t, filepath.Join(d, dirManifest), func([]byte) []byte { return nil })
		}},
		"huge manifest": {stepHeader,
			func(t *testing.T, d string) { check(t, os.Truncate(filepath.Join(d, dirManifest), maxEnvelopeBytes+1)) }},
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

func refuseExploded(t *testing.T, given *recipe, cases map[string]damage) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			if _, err := WriteDir(ctx, dir, template(given), sourcesOf(given), keyA.signer()); err != nil {
				t.Fatal(err)
			}
			if opened, err := openAll(dir, Options{Trust: ring(1, keyA)}); err != nil {
				t.Fatal(err)
			} else {
				opened.Close()
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
	file := must(os.Open(two))
	defer file.Close()
	if _, err := regular(file, before); StepOf(err) != stepOpen {
		t.Errorf("got %v", err)
	}
}

func TestOpenNoticesAReplacedDirectory(t *testing.T) {
	recipe := baseRecipe()
	dir := filepath.Join(t.TempDir(), "d")
	if _, err := WriteDir(ctx, dir, template(recipe), sourcesOf(recipe), keyA.signer()); err != nil {
		t.Fatal(err)
	}
	if _, err := openDir(dir, must(os.Lstat(t.TempDir()))); StepOf(err) != stepOpen {
		t.Errorf("got %v", err)
	}
}

// A file that shrinks between the layout step and the mapping is an error, not a panic.
func TestMappingNoticesAnotherSize(t *testing.T) {
	recipe := baseRecipe()
	file := writeTemp(t, recipe.build())
	dir := filepath.Join(t.TempDir(), "d")
	if _, err := WriteDir(ctx, dir, template(recipe), sourcesOf(recipe), keyA.signer()); err != nil {
		t.Fatal(err)
	}
	for path, cut := range map[string]string{file: file, dir: blobFile(recipe, dir, "weights/000")} {
		s, err := openStore(path)
		if err != nil {
			t.Fatal(err)
		}
		env := must(decodeEnvelope(must(s.envelope())))
		payload := must(env.open())
		manifest := must(decodeManifest(payload))
		if err := s.check(manifest, len(payload)); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(cut, 100); err != nil {
			t.Fatal(err)
		}
		if _, err := s.mapped(manifest, 2); StepOf(err) == "" {
			t.Errorf("%s: got %v", path, err)
		}
		if err := s.copyBlob(manifest, 2, make([]byte, manifest.Blobs[2].Bytes), stepWeights); StepOf(err) == "" {
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
		recipe := baseRecipe()
		manifest := recipe.manifest
		manifest.ChunkBytes = chunk
		plan := sha256.Sum256(recipe.contents["plan"])
		manifest.Blobs = []Blob{
			{Name: "big", Role: role, Type: "t", Bytes: size, Align: pageAlign, Root: rootOf(size, chunk, leaves)},
			{Name: "plan", Role: RolePlan, Type: "t", Bytes: 300, Align: 64, SHA256: plan,
				Root: rootOf(300, chunk, []Digest{plan})},
		}
		payload := must(manifest.Encode())
		layout := layOut(&manifest, len(payload))
		w := &writer{signers: signersOf(keyA)}
		envelope := must(w.sign(payload))
		path := filepath.Join(t.TempDir(), "big.hetb")
		pending := must(wholefile.Create(path))
		if err := pending.Truncate(layout.size); err != nil {
			check(t, pending.Abandon())
			t.Skip("no room for a file with holes here:", err)
		}
		form := &fileForm{file: pending, layout: layout}
		if err := form.finish(envelope, append(slices.Clone(leaves), plan)); err != nil {
			t.Fatal(err)
		}
		if _, err := pending.WriteAt(recipe.contents["plan"], layout.offsets[1]); err != nil {
			t.Fatal(err)
		}
		check(t, form.commit())
		opened, err := Open(path, Options{Trust: ring(1, keyA)})
		if role == RolePlan {
			if StepOf(err) != stepCode {
				t.Errorf("plan: got %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := opened.Range("big", size-1, 1); err != nil || got[0] != 0 {
			t.Errorf("last byte: %v", err)
		}
		if got, err := opened.Bytes("plan"); err != nil || !bytes.Equal(got, recipe.contents["plan"]) {
			t.Errorf("plan: %v", err)
		}
		opened.Close()
	}
}

func TestVerifyAllReportsProgressAndStops(t *testing.T) {
	r := baseRecipe()
	opened, err := Open(writeTemp(t, r.build()), Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	var last, total int64
	if err := opened.VerifyAll(ctx, func(d, all int64) {
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
	if err := opened.VerifyAll(stopped, nil); diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("got %v", err)
	}
}

// Everything wrong with the target is named at once, with a way out.
func TestMismatchNamesEverything(t *testing.T) {
	recipe := baseRecipe()
	fullManifest(recipe)
	_, err := Open(writeTemp(t, recipe.build()),
		Options{Trust: ring(1, keyA), Policy: Policy{Runtime: "2"}, Host: &Host{OS: "plan9", Arch: "amd64"}})
	if StepOf(err) != stepPolicy {
		t.Fatal(err)
	}
	for _, part := range []string{
		"soc", "plan9", "amd64", "asimd", "i8mm", "memory", "driver/npu", "library/onnxruntime",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %q", part, err)
		}
	}
	if len(diag.HintsOf(err)) == 0 {
		t.Error("no hint")
	}
}

// What the host knows of its SoC is the way out where the SoC is wrong, and only there. Bundles for an NPU have others.
func TestSoCAdvice(t *testing.T) {
	recipe := baseRecipe()
	recipe.manifest.Blobs[0].Role = RoleReport
	recipe.manifest.Target = Target{SoC: []string{"two cores"}, Arch: "arm64"}
	path := writeTemp(t, recipe.build())
	for _, test := range []struct {
		host Host
		want bool
	}{
		{Host{SoC: []string{"one core"}, Arch: "arm64", SoCAdvice: "give it both"}, true},
		{Host{SoC: []string{"two cores"}, Arch: "riscv64", SoCAdvice: "give it both"}, false},
	} {
		_, err := Open(path, Options{Trust: ring(1, keyA), Policy: Policy{Runtime: "2"}, Host: &test.host})
		if hints := diag.HintsOf(err); StepOf(err) != stepPolicy || slices.Contains(hints, "give it both") != test.want {
			t.Errorf("%v: %v, hints %q", test.host.SoC, err, hints)
		}
	}
}
