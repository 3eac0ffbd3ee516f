package bundle

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
)

// store is one physical form of a bundle. Every file of it is opened once and never reopened
// by its path.
type store interface {
	// envelope returns the envelope's bytes in private memory.
	envelope() ([]byte, error)
	// check compares the store with the manifest's layout (step layout).
	check(m *Manifest, payloadBytes int) error
	// table returns the chunk digests of all blobs, nil when the form has none.
	table(m *Manifest) ([]Digest, error)
	// copyBlob reads blob i into buf, which has its size.
	copyBlob(m *Manifest, i int, buf []byte, s Step) error
	// mapped returns memory shared with the page cache, which the store owns, where blob i lies in it, and a way to
	// read the same bytes without making them resident, nil when there is none.
	mapped(m *Manifest, i int) (*mem.Region, int64, io.ReaderAt, error)
	// watched are the files that mapped has returned memory of.
	watched() []watched
	// gaps checks that what lies between the blobs is zero.
	gaps(m *Manifest) error
	close() error
}

// openStore applies the step open.
func openStore(path string) (store, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return nil, cannotRead(err)
	}
	if st.IsDir() {
		return openDir(path, st)
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		return nil, refuse(StepOpen, "a symbolic link").hint("give the path of the file itself")
	}
	if err := onlyFile(st); err != nil { // before opening: to open a device can mean to use it
		return nil, err
	}
	f, err := os.OpenFile(path, openFlags, 0)
	if err != nil {
		return nil, cannotRead(err)
	}
	now, err := regular(f, st)
	if err != nil {
		_ = f.Close() // only read
		return nil, err
	}
	return &fileStore{file: f, bytes: now.Size()}, nil
}

func cannotRead(err error) error {
	class := diag.ClassIO
	if errors.Is(err, fs.ErrNotExist) {
		class = diag.ClassInput
	}
	return refuseAs(class, StepOpen, "open the bundle: %w", err)
}

// regular checks that f is the plain file that before described.
func regular(f *os.File, before os.FileInfo) (os.FileInfo, error) {
	now, err := f.Stat()
	switch {
	case err != nil:
		return nil, cannotRead(err)
	case !os.SameFile(before, now):
		return nil, refuse(StepOpen, "replaced while it was opened, or a link")
	}
	return now, onlyFile(now)
}

// onlyFile refuses devices and pipes, which may have no end or never begin.
func onlyFile(st os.FileInfo) error {
	if !st.Mode().IsRegular() {
		return refuseAs(diag.ClassInput, StepOpen, "it is no file but a device, a pipe or a socket (%s)", st.Mode().Type()).hint("give the path of a bundle")
	}
	return nil
}

func readAt(s Step, r io.ReaderAt, buf []byte, offset int64) error {
	if n, err := r.ReadAt(buf, offset); n < len(buf) {
		return refuseAs(diag.ClassIO, s, "read %d bytes at offset %d: %w", len(buf), offset, err)
	}
	return nil
}

// fileStore is a `.hetb`.
type fileStore struct {
	file   *os.File
	bytes  int64
	header int // envelope length
	layout layout
	region *mem.Region
	watch  []watched // file, once it is mapped
}

func (s *fileStore) envelope() ([]byte, error) {
	if s.bytes < headerBytes {
		return nil, refuse(StepHeader, "file of %d bytes, want at least %d", s.bytes, headerBytes)
	}
	h := make([]byte, headerBytes)
	if err := readAt(StepHeader, s.file, h, 0); err != nil {
		return nil, err
	}
	n, err := decodeHeader(h, s.bytes)
	if err != nil {
		return nil, refuse(StepHeader, "%w", err)
	}
	s.header = n
	data := make([]byte, n)
	return data, readAt(StepEnvelope, s.file, data, headerBytes)
}

func (s *fileStore) check(m *Manifest, payloadBytes int) error {
	s.layout = layOut(m, payloadBytes)
	l := &s.layout
	if l.size != s.bytes {
		return refuse(StepLayout, "file of %d bytes, its manifest says %d", s.bytes, l.size).
			hint("the file was cut off or added to; fetch it again")
	}
	if err := s.padding(int64(headerBytes+s.header), l.table); err != nil {
		return err
	}
	return s.padding(l.table+leafBytes*l.leaves[len(m.Blobs)], l.blobs)
}

// padding checks that [from, to) is zero.
func (s *fileStore) padding(from, to int64) error {
	const most = 16 << 10 // at a time
	buf := make([]byte, min(to-from, most))
	for ; from < to; from += int64(len(buf)) {
		buf = buf[:min(to-from, int64(len(buf)))]
		if err := readAt(StepLayout, s.file, buf, from); err != nil {
			return err
		}
		if !zeros(buf) {
			return refuse(StepLayout, "padding between %d and %d is not zero", from, from+int64(len(buf)))
		}
	}
	return nil
}

// gaps checks the padding between and behind the blobs.
func (s *fileStore) gaps(m *Manifest) error {
	end := s.layout.blobs
	for i, b := range m.Blobs {
		if err := s.padding(end, s.layout.offsets[i]); err != nil {
			return err
		}
		end = s.layout.offsets[i] + b.Bytes
	}
	return s.padding(end, s.layout.size)
}

func (s *fileStore) table(m *Manifest) ([]Digest, error) {
	raw := make([]byte, leafBytes*s.layout.leaves[len(m.Blobs)])
	if err := readAt(StepTable, s.file, raw, s.layout.table); err != nil {
		return nil, err
	}
	leaves := make([]Digest, len(raw)/leafBytes)
	for i := range leaves {
		leaves[i] = Digest(raw[i*leafBytes:])
	}
	return leaves, nil
}

func (s *fileStore) copyBlob(_ *Manifest, i int, buf []byte, step Step) error {
	return readAt(step, s.file, buf, s.layout.offsets[i])
}

func (s *fileStore) mapped(m *Manifest, i int) (*mem.Region, int64, io.ReaderAt, error) {
	if s.region == nil {
		r, err := mem.Map(s.file)
		if err != nil {
			return nil, 0, nil, refuseAs(diag.ClassIO, StepWeights, "%w", err)
		}
		s.region = r
		if int64(len(r.Bytes())) != s.bytes {
			return nil, 0, nil, refuse(StepWeights, "file of %d bytes had %d when it was opened", len(r.Bytes()), s.bytes)
		}
		w, err := watch(s.file)
		if err != nil {
			return nil, 0, nil, err
		}
		s.watch = []watched{w}
	}
	from := s.layout.offsets[i]
	return s.region, from, io.NewSectionReader(s.file, from, m.Blobs[i].Bytes), nil
}

func (s *fileStore) watched() []watched { return s.watch }

func (s *fileStore) close() error {
	err := s.file.Close()
	if s.region != nil {
		err = errors.Join(s.region.Close(), err)
	}
	return err
}

const (
	dirManifest = "manifest.dsse.json"
	dirBlobs    = "sha256"
)

// dirStore is an exploded bundle: dirManifest, and dirBlobs with one file per content, named
// by its digest; nothing else. Every entry is a regular file with one name.
type dirStore struct {
	root    *os.Root
	blobs   *os.Root
	regions map[Digest]*mem.Region
	watch   []watched // the files of regions
}

func openDir(path string, before os.FileInfo) (store, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, cannotRead(err)
	}
	s := &dirStore{root: root, regions: map[Digest]*mem.Region{}}
	if err := s.openBlobs(before); err != nil {
		_ = s.close() // only read
		return nil, err
	}
	return s, nil
}

func (s *dirStore) openBlobs(before os.FileInfo) error {
	if now, err := s.root.Stat("."); err != nil || !os.SameFile(before, now) {
		return refuse(StepOpen, "replaced while it was opened")
	}
	st, err := s.root.Lstat(dirBlobs)
	if errors.Is(err, fs.ErrNotExist) {
		return refuseAs(diag.ClassInput, StepOpen, "a directory that holds no bundle").hint("give the .hetb file")
	}
	if err != nil {
		return cannotRead(err)
	}
	if !st.IsDir() {
		return refuse(StepOpen, "%q is not a directory but %s", dirBlobs, st.Mode().Type())
	}
	if s.blobs, err = s.root.OpenRoot(dirBlobs); err != nil {
		return cannotRead(err)
	}
	return nil
}

func openIn(root *os.Root, name string) (*os.File, error) {
	before, err := root.Lstat(name)
	if err != nil {
		return nil, cannotRead(err)
	}
	if !before.Mode().IsRegular() { // before opening: a FIFO or a device may do something when opened
		return nil, refuse(StepOpen, "%q is not a regular file but %s", name, before.Mode().Type())
	}
	f, err := root.OpenFile(name, openFlags, 0)
	if err != nil {
		return nil, cannotRead(err)
	}
	now, err := regular(f, before)
	if err == nil && links(now) != 1 {
		err = refuse(StepOpen, "%q has %d names, want 1: somebody else may write to it", name, links(now))
	}
	if err != nil {
		_ = f.Close() // only read
		return nil, err
	}
	return f, nil
}

func (s *dirStore) envelope() ([]byte, error) {
	f, err := openIn(s.root, dirManifest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxEnvelopeBytes+1))
	if err != nil {
		return nil, refuseAs(diag.ClassIO, StepEnvelope, "read %q: %w", dirManifest, err)
	}
	if len(data) == 0 || len(data) > MaxEnvelopeBytes {
		return nil, refuse(StepHeader, "envelope of %d bytes or more, want 1 to %d", len(data), MaxEnvelopeBytes)
	}
	return data, nil
}

func (s *dirStore) check(m *Manifest, _ int) error {
	want := map[string]bool{} // blobs of equal content share a file
	for _, b := range m.Blobs {
		want[b.SHA256.String()] = true
	}
	if err := exactly(s.root, 2, func(name string) bool { return name == dirManifest || name == dirBlobs }); err != nil {
		return err
	}
	if err := exactly(s.blobs, len(want), func(name string) bool { return want[name] }); err != nil {
		return err
	}
	return nil
}

// openBlob opens the file of blob i.
func (s *dirStore) openBlob(m *Manifest, i int) (*os.File, error) {
	b := &m.Blobs[i]
	f, err := openIn(s.blobs, b.SHA256.String())
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || st.Size() != b.Bytes {
		_ = f.Close() // only read
		return nil, refuse(StepLayout, "blob %q: its file has not the %d bytes the manifest says", b.Name, b.Bytes)
	}
	return f, nil
}

// exactly checks that root has n entries and that all of them are known.
func exactly(root *os.Root, n int, known func(string) bool) error {
	d, err := root.Open(".")
	if err != nil {
		return cannotRead(err)
	}
	defer d.Close()
	names, err := d.Readdirnames(n + 1)
	if err != nil && err != io.EOF {
		return cannotRead(err)
	}
	for _, name := range names {
		if !known(name) {
			return refuse(StepLayout, "unexpected entry %q in %q", name, filepath.Base(root.Name())).
				hint("an exploded bundle holds what its manifest names and nothing else; remove it")
		}
	}
	if len(names) != n {
		return refuse(StepLayout, "%d entries in %q, want %d", len(names), filepath.Base(root.Name()), n)
	}
	return nil
}

func (s *dirStore) gaps(*Manifest) error { return nil }

func (s *dirStore) table(*Manifest) ([]Digest, error) { return nil, nil }

func (s *dirStore) copyBlob(m *Manifest, i int, buf []byte, step Step) error {
	f, err := s.openBlob(m, i)
	if err != nil {
		return err
	}
	defer f.Close()
	return readAt(step, f, buf, 0)
}

func (s *dirStore) mapped(m *Manifest, i int) (*mem.Region, int64, io.ReaderAt, error) {
	b := &m.Blobs[i]
	r := s.regions[b.SHA256]
	if r == nil {
		f, err := s.openBlob(m, i)
		if err != nil {
			return nil, 0, nil, err
		}
		w, err := watch(f)
		if err != nil {
			return nil, 0, nil, errors.Join(err, f.Close())
		}
		s.watch = append(s.watch, w)
		if r, err = mem.Map(f); err != nil {
			return nil, 0, nil, refuseAs(diag.ClassIO, StepWeights, "%w", err)
		}
		s.regions[b.SHA256] = r
	}
	if int64(len(r.Bytes())) != b.Bytes {
		return nil, 0, nil, refuse(StepWeights, "blob %q of %d bytes had %d when it was opened", b.Name, len(r.Bytes()), b.Bytes)
	}
	return r, 0, nil, nil
}

func (s *dirStore) watched() []watched { return s.watch }

func (s *dirStore) close() error {
	errs := []error{s.root.Close()}
	for _, w := range s.watch {
		errs = append(errs, w.file.Close())
	}
	if s.blobs != nil {
		errs = append(errs, s.blobs.Close())
	}
	for _, r := range s.regions {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}
