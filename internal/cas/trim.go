package cas

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"time"
)

// grown counts what was added as path and removes others where it is too much. Other processes add too, so contents are
// counted again after a sixteenth of the bound: so much may every further process exceed it by.
func (c *Cache) grown(path string, bytes int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fresh >= 0 {
		c.total += bytes
		c.fresh += bytes
		if c.total <= c.o.MaxBytes && c.fresh <= c.o.MaxBytes/16 {
			return nil
		}
	}
	files, err := list(filepath.Join(c.root, "data"))
	if err != nil {
		return err
	}
	c.total, c.fresh = 0, 0
	for _, file := range files {
		c.total += file.bytes
	}
	// Oldest first, and a little more than needed, so that not every Put has to count.
	if c.total > c.o.MaxBytes {
		for _, file := range files {
			if c.total <= c.o.MaxBytes-c.o.MaxBytes/16 {
				break
			}
			if file.path == path { // others may be stamped by a clock that was ahead
				continue
			}
			if err := os.Remove(file.path); err == nil || errors.Is(err, fs.ErrNotExist) {
				c.total -= file.bytes
			}
		}
	}
	keys, err := list(filepath.Join(c.root, "keys"))
	if err != nil {
		return err
	}
	for i := range len(keys) - maxKeys {
		os.Remove(keys[i].path)
	}
	return nil
}

// stored is a file of the cache.
type stored struct {
	path  string
	bytes int64
	used  time.Time
}

// list returns the files below dir, least recently used first.
func list(dir string) ([]stored, error) {
	var out []stored
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return ignoreGone(err)
		}
		st, err := entry.Info()
		if err == nil {
			out = append(out, stored{path, st.Size(), st.ModTime()})
		}
		return ignoreGone(err)
	})
	sort.Slice(out, func(i, j int) bool {
		if !out[i].used.Equal(out[j].used) {
			return out[i].used.Before(out[j].used)
		}
		return out[i].path < out[j].path
	})
	return out, err
}

// ignoreGone: other processes evict too.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
