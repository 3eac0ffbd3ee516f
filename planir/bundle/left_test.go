//go:build linux || darwin || freebsd

package bundle

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// What a killed writer left beside the bundle is removed by the next one of the same bundle; what a living one writes, and
// what is somebody else's, stays.
func TestLeftBehindIsRemoved(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.hetb")
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{".a.hetb.0123abcd.tmp", ".a.hetb.ffffffff.tmp", ".b.hetb.0123abcd.tmp", ".a.hetb.0123abc.tmp", ".a.hetb.0123abcg.tmp", "a.hetb.0123abcd.tmp", ".a.hetb.0123abcd.tmp.bak"} {
		check(t, os.WriteFile(at(name), []byte("x"), 0o600))
	}
	check(t, os.Mkdir(at(".a.hetb.aaaaaaaa.tmp"), 0o700))
	check(t, os.Symlink("a.hetb", at(".a.hetb.bbbbbbbb.tmp")))
	living := must(createBeside(path))
	defer living.Close()

	writeSmall(t, path)
	var got []string
	for _, e := range must(os.ReadDir(dir)) {
		got = append(got, e.Name())
	}
	want := []string{".b.hetb.0123abcd.tmp", ".a.hetb.0123abc.tmp", ".a.hetb.0123abcg.tmp", "a.hetb.0123abcd.tmp", ".a.hetb.0123abcd.tmp.bak",
		".a.hetb.aaaaaaaa.tmp", ".a.hetb.bbbbbbbb.tmp", "a.hetb", filepath.Base(living.Name())}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
}

func writeSmall(t *testing.T, path string) {
	t.Helper()
	m := Manifest{Product: "p", Entrypoint: "plan"}
	if _, err := Write(ctx, path, m, []Source{{Name: "plan", Role: RolePlan, Bytes: 11, Content: strings.NewReader("hello world")}}, keyA.signer()); err != nil {
		t.Error(err)
	}
}

// Writers of one bundle at the same time do not take each other's files for left behind.
func TestWritersSideBySide(t *testing.T) {
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
