//go:build unix

package bundle

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
)

func TestExplodedRefusesLinksAndSpecialFiles(t *testing.T) {
	recipe := baseRecipe()
	blob := func(dir, name string) string { return blobFile(recipe, dir, name) }
	refuseExploded(t, recipe, map[string]damage{
		"symlinked plan": {stepOpen, func(t *testing.T, d string) {
			p := blob(d, "plan")
			check(t, os.Rename(p, filepath.Join(filepath.Dir(d), "elsewhere")))
			check(t, os.Symlink(filepath.Join(filepath.Dir(d), "elsewhere"), p))
		}},
		"symlink inside": {stepOpen, func(t *testing.T, d string) {
			p := blob(d, "weights/000")
			check(t, os.Remove(p))
			check(t, os.Symlink(filepath.Base(blob(d, "weights/001")), p))
		}},
		"symlinked manifest": {stepOpen, func(t *testing.T, d string) {
			p := filepath.Join(d, dirManifest)
			check(t, os.Rename(p, filepath.Join(filepath.Dir(d), "m")))
			check(t, os.Symlink("../m", p))
		}},
		"symlinked blob directory": {stepOpen, func(t *testing.T, d string) {
			p := filepath.Join(d, dirBlobs)
			check(t, os.Rename(p, filepath.Join(filepath.Dir(d), "blobs")))
			check(t, os.Symlink("../blobs", p))
		}},
		"blob directory linked inside": {stepOpen, func(t *testing.T, d string) {
			p := filepath.Join(d, dirBlobs)
			check(t, os.RemoveAll(p))
			check(t, os.Symlink(".", p))
		}},
		"hard link": {stepOpen, func(t *testing.T, d string) {
			check(t, os.Link(blob(d, "weights/000"), filepath.Join(filepath.Dir(d), "other-name")))
		}},
		"fifo": {stepOpen, func(t *testing.T, d string) {
			p := blob(d, "plan")
			check(t, os.Remove(p))
			check(t, syscall.Mkfifo(p, 0o600))
		}},
	})
}

// A bundle path that is a link, a FIFO, a device or some directory.
func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real.hetb")
	if err := os.WriteFile(real, baseRecipe().build(), 0o600); err != nil {
		t.Fatal(err)
	}
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for p, class := range map[string]diag.Class{
		link: diag.ClassVerify, fifo: diag.ClassInput, "/dev/zero": diag.ClassInput, dir: diag.ClassInput,
	} {
		if _, err := Open(p, Options{Trust: ring(1, keyA)}); StepOf(err) != stepOpen || diag.ClassOf(err) != class {
			t.Errorf("%q: %v", p, err)
		}
		if _, err := Inspect(p); StepOf(err) != stepOpen {
			t.Errorf("inspect %q: %v", p, err)
		}
	}
	if opened, err := Open(real, Options{Trust: ring(1, keyA)}); err != nil {
		t.Error(err)
	} else {
		opened.Close()
	}
}

// A bundle that is replaced keeps its permissions, a new one has those that the umask leaves.
func TestBundlePermissions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.hetb")
	for _, test := range []struct {
		chmod, want os.FileMode
	}{{0, 0o640}, {0o600, 0o600}, {0o644, 0o644}} {
		if test.chmod != 0 {
			check(t, os.Chmod(path, test.chmod))
		}
		before := syscall.Umask(0o027)
		f := &fileForm{path: path}
		err := f.begin(&Manifest{}, 0)
		if err == nil {
			err = f.commit()
		}
		syscall.Umask(before)
		check(t, err)
		if mode := must(os.Stat(path)).Mode().Perm(); mode != test.want {
			t.Errorf("over %#o: mode %#o, want %#o", test.chmod, mode, test.want)
		}
	}
}

// Padding that is gone with the end of the file fails the read. It is no crash.
func TestPaddingOfATruncatedFile(t *testing.T) {
	path := writeTemp(t, make([]byte, 256<<10))
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	region, err := mem.Map(file)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	opened := &fileStore{file: file, bytes: 256 << 10, region: region}
	err = opened.padding(0, opened.bytes, mappedFile{region.Bytes()})
	if StepOf(err) != stepLayout || !mem.IsFault(err) {
		t.Errorf("got %v, want a memory fault in step %q", err, stepLayout)
	}
}
