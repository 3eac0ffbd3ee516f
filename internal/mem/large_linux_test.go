package mem

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// What Map reads from a disk comes in large pages, in whatever order it is touched, where the file system has them.
func TestMapReadsLargePages(t *testing.T) {
	mode, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil || bytes.Contains(mode, []byte("[never]")) {
		t.Skip("this system has no large pages for who asks")
	}

	const size = 64 << 20
	mapped := onDisk(t, size)
	region, err := Map(mapped)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()

	// The control asks the system by itself.
	control := onDisk(t, size)
	raw, err := unix.Mmap(int(control.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(raw)
	if err := unix.Madvise(raw, unix.MADV_HUGEPAGE); err != nil {
		t.Skipf("this system has no large pages for files: %v", err)
	}

	touchBackwards(region.Bytes())
	touchBackwards(raw)
	large, _ := residency(t, region)
	possible, _ := residency(t, &Region{data: raw, whole: raw})
	if possible < size/2 {
		t.Skipf("the file system of %s reads %d of %d bytes in large pages", control.Name(), possible, size)
	}
	if large < possible/2 {
		t.Errorf("%d of %d bytes lie in large pages, want about %d", large, size, possible)
	}
}

// Nothing is read ahead where the system reads large pages all the same; elsewhere each page would be read by itself.
func TestHasLargeReads(t *testing.T) {
	for release, want := range map[string]bool{
		"6.18.44-generic": true, "5.18.0": true, "10.0": true, "6.1": true,
		"5.17.15": false, "5.15.0-91-generic": false, "4.19.0": false, "": false, "next": false, "6": false,
	} {
		if got := hasLargeReads(release); got != want {
			t.Errorf("Linux %q: got %v, want %v", release, got, want)
		}
	}
}

// onDisk returns a file of which nothing is in memory.
func onDisk(t *testing.T, size int) *os.File {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "weights"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	for piece := bytes.Repeat([]byte("weights."), 1<<10); size > 0; size -= len(piece) {
		if _, err := file.Write(piece); err != nil {
			t.Fatal(err)
		}
	}

	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	const toTheEnd = 0
	if err := unix.Fadvise(int(file.Fd()), 0, toTheEnd, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	return file
}

// touchBackwards reads a byte of every page, beginning with the last one, so that the system sees no order that it would
// read ahead in.
func touchBackwards(data []byte) (sum byte) {
	for at := len(data) - 1; at >= 0; at -= os.Getpagesize() {
		sum += data[at]
	}
	return sum
}
