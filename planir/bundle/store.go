package bundle

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/wholefile"
)

// store is one physical form of a bundle. Every file of it is opened once and never reopened by its path: an attacker
// who replaces the path afterwards does not change what was verified.
type store interface {
	// envelope returns the envelope's bytes in private memory.
	envelope() ([]byte, error)
	// check compares the store with the manifest's layout (step layout).
	check(m *Manifest, payloadBytes int) error
	// table returns the chunk digests of all blobs, nil when the form has none.
	table(m *Manifest) ([]Digest, error)
	// copyBlob reads blob i into buf, which has its size.
	copyBlob(m *Manifest, i int, buf []byte, s Step) error
	// mapped maps blob i.
	mapped(m *Manifest, i int) (mapping, error)
	// watched are the files that mapped has returned memory of.
	watched() []watched
	// gaps checks that what lies between the blobs and behind them is zero (step layout): all of it together is less
	// than an alignment for each blob. With mapped it looks at the mapping of the blobs.
	gaps(m *Manifest, mapped bool) error
	close() error
}

// mapping is where a blob lies in memory that is shared with the page cache. The store owns that memory.
type mapping struct {
	region *mem.Region
	at     int64       // of the blob's first byte in region
	file   io.ReaderAt // the blob's bytes, read without making them resident; nil: there is no such way
}

// openStore applies the step open.
func openStore(path string) (store, error) {
	// Lstat before and SameFile after opening: what is opened is what was looked at, not a link put there in between.
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = fs.ErrNotExist // without the system's words around it
	}
	if err != nil {
		refusal := cannotRead(err)
		if hint := wholefile.Instead(path); hint != "" && refusal.Class == diag.ClassInput {
			refusal.hint("%s", hint)
		}
		return nil, refusal
	}
	if st.IsDir() {
		return openDir(path, st)
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		return nil, refuse(stepOpen, "a symbolic link").hint("give the path of the file itself")
	}
	if err := onlyFile(st); err != nil { // before opening: to open a device can mean to use it
		return nil, err
	}
	file, err := os.OpenFile(path, openFlags, 0)
	if err != nil {
		return nil, cannotRead(err)
	}
	now, err := regular(file, st)
	if err != nil {
		_ = file.Close() // only read
		return nil, err
	}
	return &fileStore{file: file, bytes: now.Size()}, nil
}

// cannotRead returns the refusal of what the system does not give: class ClassInput where there is nothing, else
// ClassIO.
func cannotRead(err error) *Error {
	class := diag.ClassIO
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		class = diag.ClassInput
	}
	return refuseAs(class, stepOpen, "open the bundle: %w", err)
}

// regular checks that f is the plain file that before described.
func regular(file *os.File, before os.FileInfo) (os.FileInfo, error) {
	now, err := file.Stat()
	switch {
	case err != nil:
		return nil, cannotRead(err)
	case !os.SameFile(before, now):
		return nil, refuse(stepOpen, "replaced while it was opened, or a link")
	}
	return now, onlyFile(now)
}

// onlyFile refuses devices and pipes, which may have no end or never begin.
func onlyFile(st os.FileInfo) error {
	if !st.Mode().IsRegular() {
		return refuseAs(diag.ClassInput, stepOpen, "it is no file but a device, a pipe or a socket (%s)",
			st.Mode().Type()).hint("give the path of a bundle")
	}
	return nil
}

// readAt fills the buffer from an offset, or fails the step.
func readAt(step Step, reader io.ReaderAt, buf []byte, offset int64) error {
	if n, err := reader.ReadAt(buf, offset); n < len(buf) {
		return refuseAs(diag.ClassIO, step, "read %d bytes at offset %d: %w", len(buf), offset, err)
	}
	return nil
}

// fileStore is a `.hetb`.
type fileStore struct {
	file   *os.File
	bytes  int64       // size when it was opened
	header int         // bytes of the envelope, known after envelope
	layout layout      // known after check
	region *mem.Region // the whole file, once a blob was mapped
	watch  []watched   // file, once it is mapped
}

// envelope reads the header and the envelope behind it.
func (s *fileStore) envelope() ([]byte, error) {
	const fromEmit = "give the .hetb that hetc emit wrote; if this is it, fetch it again from whom you trust"

	if s.bytes < headerBytes {
		return nil, refuse(stepHeader, "file of %d bytes, want at least %d", s.bytes, headerBytes).hint(fromEmit)
	}
	header := make([]byte, headerBytes)
	if err := readAt(stepHeader, s.file, header, 0); err != nil {
		return nil, err
	}
	count, err := decodeHeader(header, s.bytes)
	if err != nil {
		return nil, refuse(stepHeader, "%w", err).hint(fromEmit)
	}
	s.header = count
	data := make([]byte, count)
	return data, readAt(stepEnvelope, s.file, data, headerBytes)
}

// check compares the size of the file with what its manifest says, and demands zeros in front of and behind the table.
func (s *fileStore) check(manifest *Manifest, payloadBytes int) error {
	s.layout = layOut(manifest, payloadBytes)
	layout := &s.layout
	if layout.size != s.bytes {
		return refuse(stepLayout, "file of %d bytes, its manifest says %d", s.bytes, layout.size).
			hint("the file was cut off or added to; fetch it again")
	}
	if err := s.padding(int64(headerBytes+s.header), layout.table, s.file); err != nil {
		return err
	}
	return s.padding(layout.table+leafBytes*layout.leaves[len(manifest.Blobs)], layout.blobs, s.file)
}

// padding checks that bytes [from, to) of the file are zero.
func (s *fileStore) padding(from, to int64, file io.ReaderAt) error {
	if from == to {
		return nil
	}
	kept := buffers.Get().(*[sumBytes]byte)
	defer buffers.Put(kept)
	for from < to {
		buf := kept[:min(to-from, pageAlign)]
		if err := readAt(stepLayout, file, buf, from); err != nil {
			return err
		}
		if !zeros(buf) {
			i := slices.IndexFunc(buf, func(got byte) bool { return got != 0 })
			return refuse(stepLayout, "padding byte at offset %d is %#02x, want 0", from+int64(i), buf[i]).
				hint("the file was damaged or changed; fetch it again")
		}
		from += int64(len(buf))
	}
	return nil
}

// gaps checks the padding between and behind the blobs: no digest covers it. With mapped it reads through the mapping:
// what ReadAt brings from a disk lies in small pages, beside which weights have no room for large ones.
// RATIONALE: In which pages do weights lie?
func (s *fileStore) gaps(manifest *Manifest, mapped bool) error {
	file := io.ReaderAt(s.file)
	if mapped {
		if err := s.mapFile(); err != nil {
			return err
		}
		file = mappedFile{s.region.Bytes()}
	}
	end := s.layout.blobs
	for i, blob := range manifest.Blobs {
		if err := s.padding(end, s.layout.offsets[i], file); err != nil {
			return err
		}
		end = s.layout.offsets[i] + blob.Bytes
	}
	return s.padding(end, s.layout.size, file)
}

// mappedFile reads a file through its mapping.
type mappedFile struct{ data []byte }

// ReadAt fails where the file was truncated after it was mapped.
func (m mappedFile) ReadAt(out []byte, from int64) (n int, err error) {
	err = mem.CatchFault(func() { n = copy(out, m.data[from:]) })
	return n, err
}

// table reads the digests of all chunks.
func (s *fileStore) table(manifest *Manifest) ([]Digest, error) {
	raw := make([]byte, leafBytes*s.layout.leaves[len(manifest.Blobs)])
	if err := readAt(stepTable, s.file, raw, s.layout.table); err != nil {
		return nil, err
	}
	leaves := make([]Digest, len(raw)/leafBytes)
	for i := range leaves {
		leaves[i] = Digest(raw[i*leafBytes:])
	}
	return leaves, nil
}

// copyBlob reads from the offset that follows from the manifest.
func (s *fileStore) copyBlob(_ *Manifest, i int, buf []byte, step Step) error {
	return readAt(step, s.file, buf, s.layout.offsets[i])
}

// mapped returns the place of blob i in the mapping of the file.
func (s *fileStore) mapped(manifest *Manifest, i int) (mapping, error) {
	if err := s.mapFile(); err != nil {
		return mapping{}, err
	}
	from := s.layout.offsets[i]
	return mapping{s.region, from, io.NewSectionReader(s.file, from, manifest.Blobs[i].Bytes)}, nil
}

// mapFile maps the file, whole, unless it is mapped.
func (s *fileStore) mapFile() error {
	if s.region != nil {
		return nil
	}
	region, err := mem.Map(s.file)
	if err != nil {
		return refuseAs(diag.ClassIO, stepWeights, "%w", err)
	}
	s.region = region
	if int64(len(region.Bytes())) != s.bytes {
		return refuse(stepWeights, "file has %d bytes, had %d when it was opened", len(region.Bytes()), s.bytes)
	}
	watching, err := watch(s.file)
	if err != nil {
		return err
	}
	s.watch = []watched{watching}
	return nil
}

// watched returns the file itself, once anything of it was mapped.
func (s *fileStore) watched() []watched { return s.watch }

// close unmaps the file: memory that mapped has returned is dead afterwards.
func (s *fileStore) close() error {
	err := s.file.Close()
	if s.region != nil {
		err = errors.Join(s.region.Close(), err)
	}
	return err
}

// Names in the exploded form: of the envelope, and of the directory of contents.
const (
	dirManifest = "manifest.dsse.json"
	dirBlobs    = "sha256"
)

// dirStore is an exploded bundle: dirManifest, and dirBlobs with one file per content, named
// by its digest; nothing else. Every entry is a regular file with one name.
type dirStore struct {
	root    *os.Root               // the bundle's directory, held open
	blobs   *os.Root               // dirBlobs in it
	regions map[Digest]*mem.Region // mapped contents, by digest
	watch   []watched              // the files of regions
}

// openDir opens an exploded bundle.
func openDir(path string, before os.FileInfo) (store, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, cannotRead(err)
	}
	store := &dirStore{root: root, regions: map[Digest]*mem.Region{}}
	if err := store.openBlobs(before); err != nil {
		_ = store.close() // only read
		return nil, err
	}
	return store, nil
}

// openBlobs opens the directory of contents; the bundle is still the directory that was looked at before.
func (s *dirStore) openBlobs(before os.FileInfo) error {
	if now, err := s.root.Stat("."); err != nil || !os.SameFile(before, now) {
		return refuse(stepOpen, "replaced while it was opened")
	}
	st, err := s.root.Lstat(dirBlobs)
	if errors.Is(err, fs.ErrNotExist) {
		return refuseAs(diag.ClassInput, stepOpen, "a directory that holds no bundle").hint("give the .hetb file")
	}
	if err != nil {
		return cannotRead(err)
	}
	if !st.IsDir() {
		return refuse(stepOpen, "%q is not a directory but %s", dirBlobs, st.Mode().Type())
	}
	if s.blobs, err = s.root.OpenRoot(dirBlobs); err != nil {
		return cannotRead(err)
	}
	return nil
}

// openIn opens a regular file with one name in a directory.
func openIn(root *os.Root, name string) (*os.File, error) {
	before, err := root.Lstat(name)
	if err != nil {
		return nil, cannotRead(err)
	}
	if !before.Mode().IsRegular() { // before opening: a FIFO or a device may do something when opened
		return nil, refuse(stepOpen, "%q is not a regular file but %s", name, before.Mode().Type())
	}
	file, err := root.OpenFile(name, openFlags, 0)
	if err != nil {
		return nil, cannotRead(err)
	}
	now, err := regular(file, before)
	if err == nil && links(now) != 1 {
		err = refuse(stepOpen, "%q has %d names, want 1: somebody else may write to it", name, links(now))
	}
	if err != nil {
		_ = file.Close() // only read
		return nil, err
	}
	return file, nil
}

// envelope reads the envelope, which is a file of its own.
func (s *dirStore) envelope() ([]byte, error) {
	file, err := openIn(s.root, dirManifest)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxEnvelopeBytes+1))
	if err != nil {
		return nil, refuseAs(diag.ClassIO, stepEnvelope, "read %q: %w", dirManifest, err)
	}
	if len(data) == 0 || len(data) > maxEnvelopeBytes {
		return nil, refuse(stepHeader, "envelope of %d bytes or more, want 1 to %d", len(data), maxEnvelopeBytes)
	}
	return data, nil
}

// check demands the files that the manifest names, and no others.
func (s *dirStore) check(manifest *Manifest, _ int) error {
	want := map[string]bool{} // blobs of equal content share a file
	for _, blob := range manifest.Blobs {
		want[blob.SHA256.String()] = true
	}
	top := func(name string) bool { return name == dirManifest || name == dirBlobs }
	if err := exactly(s.root, 2, top); err != nil {
		return err
	}
	return exactly(s.blobs, len(want), func(name string) bool { return want[name] })
}

// openBlob opens the file of blob i, whose name is its digest; that it has the digest is checked later.
func (s *dirStore) openBlob(manifest *Manifest, i int) (*os.File, error) {
	blob := &manifest.Blobs[i]
	file, err := openIn(s.blobs, blob.SHA256.String())
	if err != nil {
		return nil, err
	}
	if st, err := file.Stat(); err != nil || st.Size() != blob.Bytes {
		_ = file.Close() // only read
		return nil, refuse(stepLayout, "blob %q: its file does not have the %d bytes that the manifest states",
			blob.Name, blob.Bytes)
	}
	return file, nil
}

// exactly checks that root has so many entries and that all of them are known. It reads one entry more than wanted at
// most, whatever a hostile directory holds.
func exactly(root *os.Root, count int, known func(string) bool) error {
	dir, err := root.Open(".")
	if err != nil {
		return cannotRead(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(count + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return cannotRead(err)
	}
	for _, name := range names {
		if !known(name) {
			return refuse(stepLayout, "unexpected entry %q in %q", name, filepath.Base(root.Name())).
				hint("an exploded bundle holds what its manifest names and nothing else; remove it")
		}
	}
	if len(names) != count {
		return refuse(stepLayout, "%d entries in %q, want %d", len(names), filepath.Base(root.Name()), count)
	}
	return nil
}

// gaps: files of their own have no padding.
func (s *dirStore) gaps(*Manifest, bool) error { return nil }

// table: this form has no chunk digests.
func (s *dirStore) table(*Manifest) ([]Digest, error) { return nil, nil }

// copyBlob opens the blob's file anew: only mapped files stay open.
func (s *dirStore) copyBlob(manifest *Manifest, i int, buf []byte, step Step) error {
	file, err := s.openBlob(manifest, i)
	if err != nil {
		return err
	}
	defer file.Close()
	return readAt(step, file, buf, 0)
}

// mapped maps the file of blob i, which blobs of equal content share.
func (s *dirStore) mapped(manifest *Manifest, i int) (mapping, error) {
	blob := &manifest.Blobs[i]
	region := s.regions[blob.SHA256]
	if region == nil {
		file, err := s.openBlob(manifest, i)
		if err != nil {
			return mapping{}, err
		}
		watching, err := watch(file)
		if err != nil {
			return mapping{}, errors.Join(err, file.Close())
		}
		s.watch = append(s.watch, watching)
		if region, err = mem.Map(file); err != nil {
			return mapping{}, refuseAs(diag.ClassIO, stepWeights, "%w", err)
		}
		s.regions[blob.SHA256] = region
	}
	if int64(len(region.Bytes())) != blob.Bytes {
		return mapping{}, refuse(stepWeights, "blob %q has %d bytes, had %d when it was opened", blob.Name,
			len(region.Bytes()), blob.Bytes)
	}
	return mapping{region: region}, nil
}

// watched returns the files of mapped blobs, each once.
func (s *dirStore) watched() []watched { return s.watch }

// close unmaps all blobs and closes their files and both directories.
func (s *dirStore) close() error {
	errs := []error{s.root.Close()}
	for _, watching := range s.watch {
		errs = append(errs, watching.file.Close())
	}
	if s.blobs != nil {
		errs = append(errs, s.blobs.Close())
	}
	for _, region := range s.regions {
		errs = append(errs, region.Close())
	}
	return errors.Join(errs...)
}
