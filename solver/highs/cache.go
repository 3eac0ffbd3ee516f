package highs

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hetc/hetc/internal/wholefile"
)

// The compiled module is kept in the user's cache directory: compiling takes seconds, reading it back a tenth of one.
// It is machine code, which wazero guards by a checksum of the code alone: a directory that others can write to
// is not used, and what lies in it must have the digests that were noted when it was written.

// sums lists the digest and path of every other file in the directory.
const sums = "sha256sums"

// cacheDir returns the directory of compiled modules, "" where it cannot be used. What is damaged in it is removed.
func cacheDir() string {
	user, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	dir := filepath.Join(user, "hetc", "wasm")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return ""
	}
	if !private(dir) { // others could place machine code there
		return ""
	}
	now, err := listed(dir)
	if err != nil {
		return ""
	}
	noted, err := os.ReadFile(filepath.Join(dir, sums))
	if err == nil && string(noted) == now && now != "" {
		return dir
	}
	// It will be written to: empty, and can it be?
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return ""
		}
	}
	probe, err := os.CreateTemp(dir, "probe")
	if err != nil {
		return ""
	}
	probe.Close()
	if os.Remove(probe.Name()) != nil {
		return ""
	}
	return dir
}

// note writes the digests of what the directory holds now. Without them it is not used again, which costs time only.
func note(dir string) {
	now, err := listed(dir)
	if err != nil {
		return
	}
	path := filepath.Join(dir, sums)
	if old, err := os.ReadFile(path); err == nil && string(old) == now {
		return
	}
	_ = wholefile.Write(path, []byte(now))
}

// listed returns the digests of all files below the directory but sums itself, in the order of their paths.
func listed(dir string) (string, error) {
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path == filepath.Join(dir, sums) {
			return err
		}
		if !entry.Type().IsRegular() {
			return fmt.Errorf("%q is no regular file", path)
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		hash := sha256.New()
		if _, err := io.Copy(hash, file); err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		fmt.Fprintf(&out, "%x  %s\n", hash.Sum(nil), filepath.ToSlash(rel))
		return err
	})
	return out.String(), err
}
