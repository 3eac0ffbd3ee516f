package accept

import (
	"path/filepath"
	"syscall"
	"testing"
)

// Nobody writes to a file system that is mounted for reading, root neither.
func TestStateOnReadOnlyDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no file system can be mounted here (%v); TestStateThatCannotBeWritten takes the permissions away instead", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(dir, "s.json")
	putState(t, path)
	if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	onlyRead(t, path)
}
