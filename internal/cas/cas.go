// Package cas knows how results are kept on disk under a key of everything that influenced them:
// content-addressed, whole or not at all, checked when read, and bounded.
//
// A key file says which digest the result of a key has; the content lies under its digest, and what
// several keys share is there once. Processes may use one directory at the same time: files appear by
// rename, and nothing waits for a lock. Nothing is synced: what a crash leaves half written fails its
// check and is made again.
package cas

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
)

// ErrMissing is what Get returns, wrapped, for a key whose content is not there. ErrCorrupt says that it
// was there and damaged, and comes together with ErrMissing: either way the content has to be made.
var (
	ErrMissing = errors.New("not in the cache")
	ErrCorrupt = errors.New("damaged in the cache")
)

// Key identifies a result by everything that influences it.
type Key [sha256.Size]byte

// KeyOf makes a key of a kind of result and of what influences it. Different lists give different keys.
func KeyOf(kind string, parts ...string) Key {
	hash := sha256.New()
	for _, part := range append([]string{kind}, parts...) {
		hash.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(part))))
		hash.Write([]byte(part))
	}
	return Key(hash.Sum(nil))
}

// String returns the key in hex.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// Digest is the SHA-256 of a content.
type Digest [sha256.Size]byte

// String returns the digest in hex.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// ParseDigest reads a digest in hex.
func ParseDigest(text string) (digest Digest, err error) {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(digest) {
		return digest, diag.New(diag.ClassInput, "digest %q: want %d hex digits", text, 2*len(digest))
	}
	return Digest(raw), nil
}

// Options say how a cache is opened.
type Options struct {
	// MaxBytes bounds the contents kept: those that were not used for longest are removed. A content
	// larger than a quarter of it is not kept; its digest is.
	MaxBytes int64
	// Now orders uses by time, for eviction alone; nil: contents go in the order they came.
	Now func() time.Time
	// ReadOnly changes nothing, and takes a missing directory for an empty cache.
	ReadOnly bool
}

const (
	version      = "v1" // of the layout below the directory
	keyHead      = "hetc.cas/1"
	maxKeyFile   = 256
	keptFraction = 4       // a content may take one in so many of MaxBytes
	maxKeys      = 1 << 16 // keys outlive contents, and are bounded too
	// touchAfter keeps repeated uses from writing to the disk.
	touchAfter = 10 * time.Minute
)

// Cache is an open cache. Its methods may be called concurrently.
type Cache struct {
	root    string
	o       Options
	session session

	mu    sync.Mutex
	next  int   // name of the next temporary content
	total int64 // bytes of contents, as far as known
	fresh int64 // bytes added since they were counted; -1: never counted
}

// Open opens the cache in dir, and makes it where nothing is. Temporary files of dead processes are removed. A
// directory that everybody may write to is refused: its contents decide what is built. Errors are of class ClassIO; the
// caller closes the cache.
func Open(dir string, options Options) (*Cache, error) {
	fail := func(err error) error { return diag.New(diag.ClassIO, "open cache %q: %w", dir, err) }
	cache := &Cache{root: filepath.Join(dir, version), o: options, fresh: -1}
	if st, err := os.Stat(dir); err == nil {
		if !st.IsDir() {
			return nil, fail(errors.New("not a directory"))
		}
		if !private(dir, cache.root) {
			return nil, diag.New(diag.ClassIO, "open cache %q: everybody may write to it", dir).
				WithHint("a user who can write to the cache decides what is built: chmod o-w, or name another directory")
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fail(err)
	}
	if options.ReadOnly {
		return cache, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fail(err)
	}
	for _, name := range []string{"keys", "data", "tmp"} {
		if err := os.MkdirAll(filepath.Join(cache.root, name), 0o700); err != nil {
			return nil, fail(err)
		}
	}
	// Backup programs know this mark and leave the directory out.
	tag := filepath.Join(dir, "CACHEDIR.TAG")
	if _, err := os.Lstat(tag); errors.Is(err, fs.ErrNotExist) {
		const text = "Signature: 8a477f597d28d172789f06886806bc55\n" +
			"# This directory is a cache of hetc. It may be removed at any time.\n"
		if err := wholefile.Write(tag, []byte(text)); err != nil {
			return nil, fail(err)
		}
	}
	if err := cache.session.begin(filepath.Join(cache.root, "tmp"), options.Now); err != nil {
		return nil, fail(err)
	}
	return cache, nil
}

// Close removes temporary files. Entries stay open.
func (c *Cache) Close() error {
	if err := c.session.end(); err != nil {
		return diag.New(diag.ClassIO, "close cache: %w", err)
	}
	return nil
}

// keyPath and dataPath are where the file of a key and the content of a digest lie.
func (c *Cache) keyPath(key Key) string { return spread(c.root, "keys", key.String()) }
func (c *Cache) dataPath(digest Digest) string {
	return spread(c.root, "data", digest.String())
}

// spread keeps directories small.
func spread(root, kind, name string) string { return filepath.Join(root, kind, name[:2], name[2:]) }

// Sum returns the digest and the size that the content of a key has, whether it is still kept or not;
// ok is false for a key never seen, or forgotten.
func (c *Cache) Sum(key Key) (digest Digest, bytes int64, ok bool, err error) {
	path := c.keyPath(key)
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return digest, 0, false, nil
	}
	if err != nil {
		return digest, 0, false, diag.New(diag.ClassIO, "look into the cache: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxKeyFile))
	if err != nil {
		return digest, 0, false, diag.New(diag.ClassIO, "look into the cache: %w", err)
	}
	digest, bytes, ok = parseKeyFile(key, string(text))
	if !ok {
		if !c.o.ReadOnly {
			os.Remove(path)
		}
		return Digest{}, 0, false, nil
	}
	c.touch(path)
	c.touch(c.dataPath(digest))
	return digest, bytes, true, nil
}

// A key file is one line that says which key it is for, and ends with a check of itself.
func keyFile(key Key, digest Digest, bytes int64) string {
	line := fmt.Sprintf("%s %s %s %d", keyHead, key, digest, bytes)
	return fmt.Sprintf("%s %.16s\n", line, KeyOf("key file", line))
}

// parseKeyFile accepts a key file only if it is byte for byte what keyFile writes for what it says.
func parseKeyFile(key Key, text string) (digest Digest, bytes int64, ok bool) {
	words := strings.Split(text, " ")
	if len(words) != 5 {
		return digest, 0, false
	}
	digest, err := ParseDigest(words[2])
	if err != nil {
		return digest, 0, false
	}
	bytes, err = strconv.ParseInt(words[3], 10, 64)
	return digest, bytes, err == nil && bytes >= 0 && text == keyFile(key, digest, bytes)
}

// Note stores what Sum returns for a key without any content: a digest worth remembering.
func (c *Cache) Note(key Key, digest Digest, bytes int64) error {
	if c.o.ReadOnly {
		return nil
	}
	path := c.keyPath(key)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		var tmp string
		if tmp, err = c.place(); err == nil {
			if err = os.WriteFile(tmp, []byte(keyFile(key, digest, bytes)), 0o600); err == nil {
				step("key-written")
				err = os.Rename(tmp, path)
			}
			os.RemoveAll(filepath.Dir(tmp))
		}
	}
	if err != nil {
		return diag.New(diag.ClassIO, "store in the cache: %w", err)
	}
	c.stamp(path)
	return nil
}

// Get opens the content of a key after checking every byte. The error wraps ErrMissing when it has to be
// made; other errors are of class ClassIO. The caller closes the entry.
func (c *Cache) Get(key Key) (*Entry, error) {
	file, digest, bytes, err := c.open(key)
	if err != nil {
		return nil, err
	}
	got, size, err := sum(file)
	if err != nil {
		file.Close()
		return nil, diag.New(diag.ClassIO, "read from the cache: %w", err)
	}
	if got != digest || size != bytes {
		file.Close()
		return nil, c.damaged(file.Name())
	}
	return &Entry{Digest: digest, Bytes: size, file: file}, nil
}

// Read returns the content of a key, which is read and checked once. Its errors are those of Get.
func (c *Cache) Read(key Key) ([]byte, error) {
	file, digest, bytes, err := c.open(key)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, bytes+1)) // one more shows that the file is longer
	file.Close()
	if err != nil {
		return nil, diag.New(diag.ClassIO, "read from the cache: %w", err)
	}
	if int64(len(data)) != bytes || Digest(sha256.Sum256(data)) != digest {
		return nil, c.damaged(file.Name())
	}
	return data, nil
}

// Each visits the contents of at most limit bytes, in no particular order. Damaged ones are left out.
func (c *Cache) Each(limit int64, visit func(content []byte)) error {
	files, err := list(filepath.Join(c.root, "data"))
	if err != nil {
		return diag.New(diag.ClassIO, "list the cache: %w", err)
	}
	for _, file := range files {
		if file.bytes > limit {
			continue
		}
		data, err := os.ReadFile(file.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return diag.New(diag.ClassIO, "read from the cache: %w", err)
		}
		if digest := Digest(sha256.Sum256(data)); c.dataPath(digest) == file.path {
			visit(data)
		}
	}
	return nil
}

// open opens the file of a key's content, with what its digest and size have to be.
func (c *Cache) open(key Key) (file *os.File, digest Digest, bytes int64, err error) {
	digest, bytes, ok, err := c.Sum(key)
	if err != nil {
		return nil, digest, 0, err
	}
	if !ok {
		return nil, digest, 0, ErrMissing
	}
	file, err = os.Open(c.dataPath(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, digest, 0, ErrMissing
	}
	if err != nil {
		return nil, digest, 0, diag.New(diag.ClassIO, "read from the cache: %w", err)
	}
	return file, digest, bytes, nil
}

// damaged removes a content that is not what its name says.
func (c *Cache) damaged(path string) error {
	if !c.o.ReadOnly {
		os.Remove(path)
	}
	return fmt.Errorf("%w: %w", ErrMissing, ErrCorrupt)
}

// sum reads a file to its end and returns its digest and its size in bytes.
func sum(file *os.File) (digest Digest, size int64, err error) {
	hash := sha256.New()
	size, err = io.Copy(hash, file)
	return Digest(hash.Sum(nil)), size, err
}

// Put stores what build writes to the path it is given, and opens it. An error of build is returned as
// it is, and then nothing is stored; other errors are of class ClassIO. The caller closes the entry.
func (c *Cache) Put(key Key, build func(path string) error) (*Entry, error) {
	if c.o.ReadOnly {
		return nil, diag.New(diag.ClassIO, "store in the cache: it was opened for reading")
	}
	fail := func(err error) (*Entry, error) { return nil, diag.New(diag.ClassIO, "store in the cache: %w", err) }
	tmp, err := c.place()
	if err != nil {
		return fail(err)
	}
	// Until it has its place the file lies in a folder of its own, which goes with every error.
	kept := false
	defer func() {
		if !kept {
			os.RemoveAll(filepath.Dir(tmp))
		}
	}()
	if err := build(tmp); err != nil {
		return nil, err
	}
	step("built")
	file, err := os.Open(tmp)
	if err != nil {
		return fail(err)
	}
	entry := &Entry{file: file}
	if entry.Digest, entry.Bytes, err = sum(file); err != nil {
		file.Close()
		return fail(err)
	}
	// too large to keep: the caller gets the file, and the cache notes its digest only
	if entry.Bytes > c.o.MaxBytes/keptFraction {
		if err := c.Note(key, entry.Digest, entry.Bytes); err != nil {
			file.Close()
			return nil, err
		}
		kept, entry.own = true, tmp
		return entry, nil
	}
	// content first, then the key that names it
	path := c.dataPath(entry.Digest)
	if err := entry.store(tmp, path); err != nil {
		return fail(err)
	}
	step("content-stored")
	c.stamp(path)
	if err := c.Note(key, entry.Digest, entry.Bytes); err != nil {
		entry.Close()
		return nil, err
	}
	step("stored")
	// Only what was stored can make the cache too large, so here is where it is looked at.
	if err := c.grown(path, entry.Bytes); err != nil {
		entry.Close()
		return fail(err)
	}
	return entry, nil
}

// store moves the content to path and keeps it open: another process may remove it at any time.
func (e *Entry) store(tmp, path string) error {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		return nil
	}
	e.file.Close() // some systems rename closed files only
	if os.Rename(tmp, path) != nil {
		return err
	}
	e.file, err = os.Open(path)
	return err
}

// step is where tests let a process die.
var step = func(string) {}

// place returns a path for a temporary file, in a new directory.
func (c *Cache) place() (string, error) {
	c.mu.Lock()
	c.next++
	number := c.next
	c.mu.Unlock()
	dir := filepath.Join(c.session.dir, strconv.Itoa(number))
	return filepath.Join(dir, "content"), os.Mkdir(dir, 0o700)
}

// Scratch makes an empty temporary directory. Close removes it. If the process dies, the next process that opens the
// cache does.
func (c *Cache) Scratch() (string, error) {
	if c.o.ReadOnly {
		return "", diag.New(diag.ClassIO, "make a directory in the cache: it was opened for reading")
	}
	path, err := c.place()
	if err != nil {
		return "", diag.New(diag.ClassIO, "make a directory in the cache: %w", err)
	}
	return filepath.Dir(path), nil
}

// touch marks a use. It fails silently: the order of eviction is worth no error.
func (c *Cache) touch(path string) {
	if c.o.Now == nil || c.o.ReadOnly {
		return
	}
	if st, err := os.Stat(path); err == nil && c.o.Now().Sub(st.ModTime()).Abs() > touchAfter {
		c.stamp(path)
	}
}

// stamp makes a file the one used last.
func (c *Cache) stamp(path string) {
	if c.o.Now != nil {
		now := c.o.Now()
		_ = os.Chtimes(path, now, now)
	}
}

// Entry is an open content: it stays readable when it is evicted meanwhile.
type Entry struct {
	Digest Digest
	Bytes  int64
	file   *os.File
	own    string // where it lies when the cache does not keep it
}

// Data returns the content, which must not be larger than limit bytes.
func (e *Entry) Data(limit int64) ([]byte, error) {
	if e.Bytes > limit {
		return nil, diag.New(diag.ClassInput, "content of %d bytes in the cache, want at most %d", e.Bytes, limit)
	}
	data := make([]byte, e.Bytes)
	if _, err := io.ReadFull(io.NewSectionReader(e.file, 0, e.Bytes), data); err != nil {
		return nil, diag.New(diag.ClassIO, "read from the cache: %w", err)
	}
	if Digest(sha256.Sum256(data)) != e.Digest {
		return nil, diag.New(diag.ClassIO, "read from the cache: content changed while it was open")
	}
	return data, nil
}

// Save replaces the file at path with the content, as a whole or not at all.
func (e *Entry) Save(path string) error {
	if e.own != "" && wholefile.Adopt(e.own, path) == nil { // moved, not copied: it may be large
		return nil
	}
	return wholefile.Stream(path, func(out io.Writer) error {
		hash := sha256.New()
		if _, err := io.Copy(io.MultiWriter(out, hash), io.NewSectionReader(e.file, 0, e.Bytes)); err != nil {
			return err
		}
		if Digest(hash.Sum(nil)) != e.Digest {
			return errors.New("content changed while it was open")
		}
		return nil
	})
}

// Close releases the content.
func (e *Entry) Close() error {
	err := e.file.Close()
	if e.own != "" {
		os.RemoveAll(filepath.Dir(e.own))
	}
	if err != nil {
		return diag.New(diag.ClassIO, "close an entry of the cache: %w", err)
	}
	return nil
}
