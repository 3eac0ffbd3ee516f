package bundle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
)

// form is a physical form being written. The calls are begin, content for each blob in turn, finish, commit. Nothing
// is visible under the target path before commit. abort undoes everything and does nothing after commit.
type form interface {
	// begin makes room under a temporary name; payloadBytes is the length of the manifest's encoding.
	begin(m *Manifest, payloadBytes int) error
	// content returns where blob i goes and its offset in that file; done is called with its digest afterwards.
	content(i int) (w io.Writer, at int64, done func(sha256 Digest) error, err error)
	// finish writes what depends on contents: the envelope, and the chunk digests of all blobs in order.
	finish(envelope []byte, leaves []Digest) error
	commit() error
	abort() error
}

// fileForm writes a `.hetb` beside its target and renames it.
//
// Contents go to offsets that follow from sizes alone. The envelope and the table of chunk digests are written last,
// into the gap that the layout keeps for them in front.
type fileForm struct {
	path   string
	file   *wholefile.Pending
	layout layout
}

// begin makes a file of the final size, whose gaps are never written.
func (f *fileForm) begin(manifest *Manifest, payloadBytes int) (err error) {
	f.layout = layOut(manifest, payloadBytes)
	if f.file, err = wholefile.Create(f.path); err != nil {
		return err
	}
	return f.file.Truncate(f.layout.size) // the gaps read as zeros, as the format demands
}

// content returns the place of a blob in the file; nothing remains to be done after it.
func (f *fileForm) content(i int) (io.Writer, int64, func(Digest) error, error) {
	at := f.layout.offsets[i]
	return io.NewOffsetWriter(f.file, at), at, func(Digest) error { return nil }, nil
}

// finish writes header, envelope and table in front of the contents.
func (f *fileForm) finish(envelope []byte, leaves []Digest) error {
	if int64(headerBytes+len(envelope)) > f.layout.table {
		panic(fmt.Sprintf("BUG: envelope of %d bytes does not fit before the table at %d", len(envelope),
			f.layout.table))
	}
	if _, err := f.file.WriteAt(append(encodeHeader(len(envelope)), envelope...), 0); err != nil {
		return err
	}
	table := make([]byte, 0, leafBytes*len(leaves))
	for i := range leaves {
		table = append(table, leaves[i][:]...)
	}
	_, err := f.file.WriteAt(table, f.layout.table)
	return err
}

// commit makes the file visible under its name, synced.
func (f *fileForm) commit() error { return f.file.Commit() }

// abort removes the temporary file.
func (f *fileForm) abort() error {
	if f.file == nil {
		return nil
	}
	return f.file.Abandon()
}

// dirForm writes an exploded bundle beside its target and renames it.
type dirForm struct {
	path string
	temp string   // holds the bundle until it is whole; "" when there is none
	dir  string   // the bundle in it
	file *os.File // being written
}

// begin makes the directory inside a temporary one beside the target.
func (f *dirForm) begin(*Manifest, int) error {
	if _, err := os.Lstat(f.path); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = diag.New(diag.ClassInput, "the target exists already").WithHint("remove it or choose another name")
		}
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(f.path), "."+filepath.Base(f.path)+".*.tmp")
	if err != nil {
		return err
	}
	f.temp, f.dir = temp, filepath.Join(temp, "bundle")
	return os.MkdirAll(filepath.Join(f.dir, dirBlobs), 0o777) // what the user's umask leaves
}

// content writes to one temporary name, because a blob's file is named by a digest that is known only at its end.
func (f *dirForm) content(int) (io.Writer, int64, func(Digest) error, error) {
	if err := f.open("part"); err != nil {
		return nil, 0, nil, err
	}
	return f.file, 0, func(digest Digest) error {
		if err := f.close(); err != nil {
			return err
		}
		// Equal contents share one file: renaming over it changes nothing.
		return os.Rename(filepath.Join(f.dir, "part"), filepath.Join(f.dir, dirBlobs, digest.String()))
	}, nil
}

// open creates a file of the bundle, of which only one is written at a time.
func (f *dirForm) open(name string) (err error) {
	f.file, err = os.OpenFile(filepath.Join(f.dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	return err
}

// close syncs and closes the file that is being written.
func (f *dirForm) close() error {
	err := errors.Join(f.file.Sync(), f.file.Close())
	f.file = nil
	return err
}

// finish writes the envelope as a file; this form has no table of chunks.
func (f *dirForm) finish(envelope []byte, _ []Digest) error {
	if err := f.open(dirManifest); err != nil {
		return err
	}
	if _, err := f.file.Write(envelope); err != nil {
		return err
	}
	return f.close()
}

// commit makes contents durable before the name: after a crash, the target is whole or absent.
func (f *dirForm) commit() error {
	wholefile.SyncDir(filepath.Join(f.dir, dirBlobs))
	wholefile.SyncDir(f.dir)
	if err := os.Rename(f.dir, f.path); err != nil {
		return err
	}
	wholefile.SyncDir(filepath.Dir(f.path))
	return f.abort() // what is left is empty
}

// abort removes the temporary directory with all that is in it.
func (f *dirForm) abort() error {
	if f.file != nil {
		_ = f.file.Close() // about to be removed
	}
	if f.temp == "" {
		return nil
	}
	temp := f.temp
	f.temp = ""
	return os.RemoveAll(temp)
}
