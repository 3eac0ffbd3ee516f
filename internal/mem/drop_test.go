//go:build linux || darwin || freebsd

package mem

import (
	"os"
	"path/filepath"
	"testing"
)

// Pages of a mapped file that are dropped come back with what they held, and a large mapping closes.
func TestDropKeepsTheFile(t *testing.T) {
	const size = 3*dropPiece + 12345
	path := filepath.Join(t.TempDir(), "sparse")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	marks := []int{0, dropPiece - 1, dropPiece, 2*dropPiece + 7, size - 1}
	for i, at := range marks {
		if _, err := file.WriteAt([]byte{byte(i + 1)}, int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	region, err := Map(file)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for i, at := range marks {
			if got := region.Bytes()[at]; got != byte(i+1) {
				t.Errorf("byte %d is %d, want %d", at, got, i+1)
			}
		}
		drop(region.whole)
	}
	if err := region.Close(); err != nil {
		t.Fatal(err)
	}
}
