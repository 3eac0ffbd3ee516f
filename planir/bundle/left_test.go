//go:build linux || darwin || freebsd

package bundle

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hetc/hetc/internal/require"
)

// What a killed writer left beside the bundle is removed by the next one of the same bundle.
func TestLeftBehindIsRemoved(t *testing.T) {
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, ".a.hetb.1-0.tmp"), []byte("x"), 0o600))
	writeSmall(t, filepath.Join(dir, "a.hetb"))
	if left := must(os.ReadDir(dir)); len(left) != 1 || left[0].Name() != "a.hetb" {
		t.Errorf("left %v, want the bundle alone", left)
	}
}

func writeSmall(t *testing.T, path string) {
	t.Helper()
	m := Manifest{Product: "p", Entrypoint: "plan"}
	if _, err := Write(ctx, path, m,
		[]Source{{Name: "plan", Role: RolePlan, Bytes: 11, Content: strings.NewReader("hello world")}},
		keyA.signer()); err != nil {
		t.Error(err)
	}
}

// Writers of one bundle at the same time do not take each other's files for left behind.
func TestWritersSideBySide(t *testing.T) {
	require.Slow(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "a.hetb")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 40 {
				writeSmall(t, path)
			}
		})
	}
	all.Wait()
	openAhead(t, path)
	if left := must(os.ReadDir(dir)); len(left) != 1 {
		t.Errorf("left %v", left)
	}
}
