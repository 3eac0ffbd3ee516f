package matrix

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
)

// Reading gigabytes of weights or bundles to learn that they are what they were takes longer than
// everything else in a run that has nothing to do. So digests are remembered under path, device, inode,
// size, time of modification and time of change. The last one cannot be set back: every write shows, but
// for one that follows within the tick of the file system's clock in which the file was hashed. Hence what
// changed during the last moments is not remembered. Where a system does not tell the time of change,
// everything is read.

// settleTime is longer than the ticks of file systems' clocks.
const settleTime = 2 * time.Second

// smallFile is what is read faster than it is worth remembering.
const smallFile = 4 << 20

// stamp tells whether a file, or the files of a directory, are what they were.
type stamp struct {
	id      string
	changed time.Time
}

// stampOf returns the stamp of a file, or of a directory and the files in it; ok is false where the system
// does not tell enough.
func stampOf(path string) (found stamp, ok bool) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return found, false
	}
	// a directory's stamp is that of its entries too, one level deep: models are flat
	names := []string{abs}
	if st, err := os.Stat(abs); err != nil {
		return found, false
	} else if st.IsDir() {
		entries, err := os.ReadDir(abs)
		if err != nil {
			return found, false
		}
		for _, entry := range entries {
			names = append(names, filepath.Join(abs, entry.Name()))
		}
	}
	for _, name := range names {
		id, changed, ok := inode(name)
		if !ok {
			return found, false
		}
		found.id += fmt.Sprintf("%q %s\n", name, id)
		if changed.After(found.changed) {
			found.changed = changed
		}
	}
	return found, true
}

// remembered returns what compute says about path, from the cache where nothing changed since.
func (b *build) remembered(path string, compute func() (cas.Digest, error)) (cas.Digest, error) {
	now := b.o.Now()
	before, ok := stampOf(path)
	key := cas.KeyOf("digest", b.o.Program, before.id)
	if ok {
		if digest, _, hit, err := b.o.Cache.Sum(key); hit || err != nil {
			return digest, err
		}
	}
	digest, err := compute()
	if err != nil {
		return digest, err
	}
	// Noted only if nothing changed while it was read, and not during the last moments before.
	if after, still := stampOf(path); ok && still && after == before && now.Sub(before.changed) > settleTime {
		err = b.o.Cache.Note(key, digest, 0)
	}
	return digest, err
}

// modelDigest is m.Digest, remembered for models with weights.
func (b *build) modelDigest(model *models.Model) (cas.Digest, error) {
	compute := func() (cas.Digest, error) {
		text, err := model.Digest()
		if err != nil {
			return cas.Digest{}, err
		}
		return cas.ParseDigest(text)
	}
	if model.Dir == "" {
		return compute()
	}
	return b.remembered(model.Dir, compute)
}

// holds reports whether the file at path has the digest and the size.
func (b *build) holds(path string, want cas.Digest, bytes int64) (bool, error) {
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() || st.Size() != bytes {
		return false, nil
	}
	// large files are hashed once per change, by the stamp of the file
	hash := func() (d cas.Digest, err error) {
		file, err := wholefile.Open(path)
		if err != nil {
			return d, err
		}
		defer file.Close()
		hash := sha256.New()
		if _, err = io.Copy(hash, file); err != nil {
			return d, diag.New(diag.ClassIO, "read %q: %w", path, err)
		}
		return cas.Digest(hash.Sum(nil)), nil
	}
	var have cas.Digest
	if bytes < smallFile {
		have, err = hash()
	} else {
		have, err = b.remembered(path, hash)
	}
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return have == want, err
}
