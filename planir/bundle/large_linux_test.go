package bundle

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/wholefile"
)

// What a bundle reads from a disk before it reads weights leaves these in large pages, where the file system has them:
// the padding of blobs, the chunks that end them, and parts that share a chunk.
func TestWeightsComeInLargePages(t *testing.T) {
	const layers, layerBytes, firstBytes = 6, 11<<20 + 16<<10, 7<<20 + 4<<10
	path := filepath.Join(t.TempDir(), "x.hetb")
	manifest := Manifest{Product: "p", Entrypoint: "plan", ChunkBytes: 64 << 10}
	sources := []Source{{Name: "plan", Role: RolePlan, Bytes: 11, Content: strings.NewReader("hello world")}}
	var first, rest []Part
	for i := range layers {
		name := fmt.Sprintf("weights/%d", i)
		sources = append(sources, Source{Name: name, Role: RoleWeights, Bytes: layerBytes, Align: 64 << 10,
			Content: bytes.NewReader(pattern(byte(i), layerBytes))})
		first = append(first, Part{Blob: name, Bytes: firstBytes})
		rest = append(rest, Part{Blob: name, Offset: firstBytes, Bytes: layerBytes - firstBytes})
	}
	if _, err := Write(ctx, path, manifest, sources, keyA.signer()); err != nil {
		t.Fatal(err)
	}

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	forget(t, path)
	opened := openAhead(t, path)
	opened.Ahead(ctx, first, nil)
	opened.Ahead(ctx, rest, nil)
	large := largePages(t, path)

	// The control is a file of as many bytes that nothing else has read.
	control := filepath.Join(t.TempDir(), "control")
	if err := wholefile.Write(control, data); err != nil {
		t.Fatal(err)
	}
	forget(t, control)
	region := mapControl(t, control)
	touch(region)
	possible := largePages(t, control)
	if possible < len(data)*9/10 {
		t.Skipf("the file system of %s, or its memory, gives %d of %d bytes large pages", control, possible, len(data))
	}
	if large < possible*5/6 { // what lies before the weights is read before them
		t.Errorf("%d of %d bytes lie in large pages, want about %d", large, len(data), possible)
	}
}

// mapControl maps a file as a bundle's store does.
func mapControl(t *testing.T, path string) []byte {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	region, err := mem.Map(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = region.Close() })
	return region.Bytes()
}

// largePages is how many bytes of a file this process has mapped in large pages.
func largePages(t *testing.T, path string) (size int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	inside := false
	for line := range strings.Lines(string(maps)) {
		var from, to, kib int
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = strings.HasSuffix(strings.TrimSpace(line), path)
		}
		if n, _ := fmt.Sscanf(line, "FilePmdMapped: %d kB", &kib); n == 1 && inside {
			size += kib << 10
		}
	}
	return size
}

// forget takes a file out of memory.
func forget(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const toTheEnd = 0
	if err := unix.Fadvise(int(file.Fd()), 0, toTheEnd, unix.FADV_DONTNEED); err != nil {
		t.Skip(err)
	}
}
