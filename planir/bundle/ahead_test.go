package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
)

const aheadChunk = 4096

// aheadSizes are the sizes of the weights: enough chunks of one size for several groups, rests of different sizes.
var aheadSizes = []int64{40*aheadChunk + 100, 9 * aheadChunk, 100, 3*aheadChunk + 64}

// aheadBundle writes a bundle with such weights; place says where a blob's bytes lie in the file.
func aheadBundle(t testing.TB) (path string, place func(blob int) int64) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "x.hetb")
	manifest := Manifest{Product: "p", Entrypoint: "plan", ChunkBytes: aheadChunk}
	sources := []Source{{Name: "plan", Role: RolePlan, Bytes: 11, Content: strings.NewReader("hello world")}}
	for i, n := range aheadSizes {
		sources = append(sources, Source{Name: fmt.Sprintf("weights/%d", i), Role: RoleWeights, Bytes: n,
			Content: bytes.NewReader(pattern(byte(i), int(n)))})
	}
	if _, err := Write(ctx, path, manifest, sources, keyA.signer()); err != nil {
		t.Fatal(err)
	}
	b := openAhead(t, path)
	offsets := b.store.(*fileStore).layout.offsets
	return path, func(blob int) int64 { return offsets[1+blob] }
}

func openAhead(t testing.TB, path string) *Bundle {
	t.Helper()
	opened, err := Open(path, Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	return opened
}

// Ahead marks the chunks that hold the parts, those that are good, and no other.
func TestAheadMarksWhatIsGood(t *testing.T) {
	path, place := aheadBundle(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		damaged := bytes.Clone(data)
		for range rapid.IntRange(0, 3).Draw(t, "damages") {
			i := rapid.IntRange(0, len(aheadSizes)-1).Draw(t, "blob")
			at := rapid.Int64Range(0, aheadSizes[i]-1).Draw(t, "byte")
			damaged[place(i)+at] ^= 4
		}
		file := path + ".damaged"
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		opened, err := Open(file, Options{Trust: ring(1, keyA)})
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		anticipated := rapid.Bool().Draw(t, "anticipated")
		if anticipated {
			opened.Anticipate()
			if rapid.Bool().Draw(t, "all of it") {
				<-opened.early.done
			}
		}
		want := map[[2]int64]bool{}
		var parts []Part
		for range rapid.IntRange(1, 5).Draw(t, "parts") {
			i := rapid.IntRange(0, len(aheadSizes)-1).Draw(t, "of")
			from := rapid.Int64Range(0, aheadSizes[i]).Draw(t, "from")
			n := rapid.Int64Range(0, aheadSizes[i]-from).Draw(t, "n")
			parts = append(parts, Part{fmt.Sprintf("weights/%d", i), from, n, rapid.Bool().Draw(t, "few")})
			for c := from / aheadChunk; n > 0 && c*aheadChunk < from+n; c++ {
				want[[2]int64{int64(i), c}] = true
			}
		}
		through := 0
		opened.Ahead(ctx, parts, func(parts int) {
			if parts <= through {
				t.Fatalf("through %d parts after %d", parts, through)
			}
			through = parts
		})
		if through != len(parts) {
			t.Fatalf("through %d of %d parts at the end", through, len(parts))
		}
		for i := range aheadSizes {
			x, err := opened.find(fmt.Sprintf("weights/%d", i))
			if err != nil {
				t.Fatal(err)
			}
			for c := range chunks(x.Bytes, x.chunk) {
				key := [2]int64{int64(i), c}
				known, good := x.known(c), !changed(data, damaged, place(i), c, x.Bytes)
				if known != (want[key] && good) && !(anticipated && known && good) {
					t.Fatalf("blob %d chunk %d: known %v, asked for %v, good %v", i, c, known, want[key], good)
				}
			}
		}
		// Whatever was checked ahead, a part is refused or released as ever.
		for _, part := range parts {
			got, err := opened.Range(part.Blob, part.Offset, part.Bytes)
			c := openAheadRange(t, file, part)
			if (err == nil) != (c == nil) || err != nil && err.Error() != c.Error() {
				t.Fatalf("part %+v: %v; without looking ahead: %v", part, err, c)
			}
			if err == nil && int64(len(got)) != part.Bytes {
				t.Fatalf("part %+v: %d bytes", part, len(got))
			}
		}
	})
}

// changed compares a chunk of two files.
func changed(data, b []byte, place, c, blobBytes int64) bool {
	from, to := place+c*aheadChunk, place+min((c+1)*aheadChunk, blobBytes)
	return !bytes.Equal(data[from:to], b[from:to])
}

// openAheadRange is the error of Range of a bundle that was just opened.
func openAheadRange(t *rapid.T, path string, part Part) error {
	opened, err := Open(path, Options{Trust: ring(1, keyA)})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	_, err = opened.Range(part.Blob, part.Offset, part.Bytes)
	return err
}

// Whatever has been checked when Close is called, nothing reads the file afterwards, and Range refuses as ever.
func TestCloseWhileWeightsAreChecked(t *testing.T) {
	path, _ := aheadBundle(t)
	for range 50 {
		opened := openAhead(t, path)
		opened.Anticipate()
		if _, err := opened.Range("weights/1", 5, 2*aheadChunk); err != nil {
			t.Fatal(err)
		}
		begun := opened.early
		if err := opened.Close(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-begun.done:
		default:
			t.Fatal("closed while weights are checked")
		}
		if _, err := opened.Range("weights/1", 5, 2*aheadChunk); err == nil {
			t.Fatal("released by a bundle that is closed")
		}
	}
}

// The forms whose weights are checked as a whole, or in private memory, have nothing to anticipate.
func TestAnticipateInOtherForms(t *testing.T) {
	path, _ := aheadBundle(t)
	opened, err := Open(path, Options{Trust: ring(1, keyA), Mode: Copy})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	exploded := filepath.Join(t.TempDir(), "d")
	if err := opened.Explode(ctx, exploded); err != nil {
		t.Fatal(err)
	}
	for _, bundled := range []*Bundle{opened, openAhead(t, exploded)} {
		bundled.Anticipate()
		<-bundled.early.done
		if got, err := bundled.Bytes("weights/1"); err != nil || !bytes.Equal(got, pattern(1, int(aheadSizes[1]))) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
}

func TestAheadOfNonsense(t *testing.T) {
	path, _ := aheadBundle(t)
	opened := openAhead(t, path)
	stopped, stop := context.WithCancel(ctx)
	stop()
	opened.Ahead(stopped, []Part{{Blob: "weights/0", Bytes: aheadSizes[0]}}, func(parts int) {
		t.Errorf("stopped, and through %d parts", parts)
	})
	opened.Ahead(ctx, []Part{
		{Blob: "nothing", Bytes: 1}, {Blob: "weights/0", Offset: -1, Bytes: 5},
		{Blob: "weights/0", Offset: 0, Bytes: -1},
		{Blob: "weights/0", Offset: 1, Bytes: aheadSizes[0]}, {Blob: "weights/0", Offset: 1 << 62, Bytes: 1 << 62},
		{Blob: "weights/0", Offset: 5},
	}, nil)
	for _, x := range opened.blobs {
		if x.Role == RoleWeights {
			for c := range chunks(x.Bytes, x.chunk) {
				if x.known(c) {
					t.Errorf("blob %q: chunk %d is known to be good", x.Name, c)
				}
			}
		}
	}
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
	opened.Ahead(ctx, []Part{{Blob: "weights/0", Bytes: 1}}, nil)
}

// A file that ends while it is read is refused, and does not end the process.
func TestAheadOfATruncatedFile(t *testing.T) {
	path, place := aheadBundle(t)
	opened := openAhead(t, path)
	if err := os.Truncate(path, place(0)+8*aheadChunk); err != nil {
		t.Skip("this system keeps mapped files from being truncated:", err)
	}
	opened.Anticipate()
	for _, few := range []bool{false, true} {
		opened.Ahead(ctx, []Part{{Blob: "weights/0", Bytes: aheadSizes[0], Few: few},
			{Blob: "weights/1", Bytes: aheadSizes[1], Few: few}}, nil)
	}
	_, err := opened.Bytes("weights/1")
	if StepOf(err) != stepWeights || diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("got %v, want an error of reading", err)
	}
	if _, ok := errors.AsType[*Error](err); !ok {
		t.Errorf("got %T, want *Error", err)
	}
}

func TestChunkSizeFollowsTheSize(t *testing.T) {
	for _, test := range []struct{ bytes, want int64 }{
		{0, 64 << 10}, {10 << 20, 64 << 10}, {1 << 30, 64 << 10}, {1<<30 + 64<<10, 128 << 10}, {5 << 30, 512 << 10},
		{maxBytes, maxChunk}, {-1, 64 << 10},
	} {
		if got := chunkFor([]Source{{Bytes: test.bytes}, {Bytes: 0}}); got != test.want {
			t.Errorf("%d bytes: got chunks of %d, want %d", test.bytes, got, test.want)
		}
	}
}

// What is changed anywhere is refused before its first use, whether it is asked for with others or alone, looked at
// ahead or not; what is whole is released all the same, because it is checked by itself.
func TestEveryChunkIsCheckedBeforeItsFirstUse(t *testing.T) {
	path, place := aheadBundle(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const blob = 0
	whole := Part{Blob: "weights/0", Bytes: aheadSizes[blob]}
	count := chunks(aheadSizes[blob], aheadChunk)
	for changed := range count {
		damaged := bytes.Clone(data)
		damaged[place(blob)+changed*aheadChunk+changed] ^= 1
		file := path + ".damaged"
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		opened := openAhead(t, file)
		if changed%2 == 0 {
			opened.Ahead(ctx, []Part{whole}, nil)
		}
		// chunk after chunk, as a program that loads on demand asks for them
		for c := range count {
			from := c * aheadChunk
			got, err := opened.Range(whole.Blob, from, min(aheadChunk, aheadSizes[blob]-from))
			switch {
			case c == changed && (err == nil || StepOf(err) != stepWeights ||
				!strings.Contains(err.Error(), fmt.Sprintf("chunk %d ", c))):
				t.Fatalf("chunk %d was changed: got %d bytes, %v", c, len(got), err)
			case c != changed && err != nil:
				t.Fatalf("chunk %d is whole, chunk %d was changed: %v", c, changed, err)
			}
		}
		if _, err := opened.Range(whole.Blob, 0, whole.Bytes); err == nil {
			t.Fatalf("all was released, and chunk %d was changed", changed)
		}
		if err := opened.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
