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

// A run with nothing to build would spend most of its time reading gigabytes of unchanged weights and bundles. So
// digests are remembered by path, device, inode, size, time of modification and time of change.
//
// Nobody can set the time of change back, so that it shows every write except one: a write within the same tick of the
// file system's clock as the hashing. Hence a file that changed during the last moments is not remembered. Where a
// system does not tell the time of change, all files are read.

// settleTime is longer than the ticks of file systems' clocks.
const settleTime = 2 * time.Second

// smallFile is the size, in bytes, below which reading a file costs less than remembering its digest.
const smallFile = 4 << 20

// stamp identifies the state of a file, or of the files of a directory.
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

	// The stamp of a directory covers its entries, one level deep, because models are flat.
	names := []string{abs}
	info, err := os.Stat(abs)
	if err != nil {
		return found, false
	}

	if info.IsDir() {
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

// remembered returns the digest that compute finds for path, from the cache if path has not changed since.
func (b *build) remembered(path string, compute func() (cas.Digest, error)) (cas.Digest, error) {
	now := b.o.Now()
	before, ok := stampOf(path)
	key := cas.KeyOf("digest", b.o.Program, before.id)
	if ok {
		digest, _, hit, err := b.o.Cache.Sum(key)
		if hit || err != nil {
			return digest, err
		}
	}

	digest, err := compute()
	if err != nil || !ok {
		return digest, err
	}

	// Remember the digest only if nothing changed while the files were read, nor during the last moments before.
	after, still := stampOf(path)
	if still && after == before && now.Sub(before.changed) > settleTime {
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

	// Large files are hashed once per change.
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
