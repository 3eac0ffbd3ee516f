package machine

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// On Linux everything is known, and makes sense.
func TestThisMachine(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems may not say")
	}
	total, free := TotalMemory(), FreeMemory()
	if free <= 0 || total < free {
		t.Errorf("%d bytes of %d are free", free, total)
	}
	if load, ok := Load(); !ok || load < 0 {
		t.Errorf("load %v, %v", load, ok)
	}
	if busy, stolen, ok := Busy(50 * time.Millisecond); ok && (busy < 0 || busy > 1 || stolen < 0 || stolen > 1) {
		t.Errorf("busy %v, stolen %v", busy, stolen)
	}
	before, ok := Used()
	for began := time.Now(); time.Since(began) < 100*time.Millisecond; { // this is use
	}
	if after, known := Used(); ok && (!known || after-before < 20*time.Millisecond) {
		t.Errorf("busy for 100 ms: used %v, %v", after-before, known)
	}
	if n, ok := DiskSpace(t.TempDir()); !ok || n < 0 {
		t.Errorf("disk space %d, %v", n, ok)
	}
	if _, ok := DiskSpace(filepath.Join(t.TempDir(), "gone")); ok {
		t.Error("a directory that does not exist has disk space")
	}
	if AddressSpace() < 1<<20 || FileSize() < 1 || OpenFiles() < 3 {
		t.Errorf("limits %d, %d, %d", AddressSpace(), FileSize(), OpenFiles())
	}
}

func TestFields(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	info := write("meminfo", "MemTotal:       24 kB\nMemAvailable: 7 kB\nBroken: x kB\nHuge: 99999999999999 kB\nCut:\n")
	for key, want := range map[string]int64{"MemTotal:": 24 << 10, "MemAvailable:": 7 << 10, "Broken:": 0, "Huge:": 0, "Cut:": 0, "None:": 0} {
		if got := MemoryField(info, key); got != want {
			t.Errorf("%s %d, want %d", key, got, want)
		}
	}
	for text, want := range map[string]int64{"12\n": 12, "max\n": 0, "": 0} {
		if got := number(write("n", text)); got != want {
			t.Errorf("number %q: %d, want %d", text, got, want)
		}
	}
	if got := number(filepath.Join(dir, "gone")); got != 0 {
		t.Errorf("a missing file: %d", got)
	}
}
