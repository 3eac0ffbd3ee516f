// Package programs knows where binaries of programs for GPUs come from: the bundle, then a cache of what was built here
// before.
//
// A binary is a blob of the bundle, a line of JSON that says what it is of and the bytes. It is taken on exactly that
// device and driver; on any other one the verified source beside it is built, or refused.
package programs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"sync"

	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
)

// schema identifies the format.
const schema = "hetc.program/1"

// Folder is that of the blobs in a bundle.
const Folder = "programs/"

// maxHeader bounds the first line in bytes.
const maxHeader = 4 << 10

// header is the first line of a blob.
type header struct {
	Schema string `json:"schema"`
	Device string `json:"device"`
	Driver string `json:"driver"`
	Source string `json:"source"` // SHA-256 in hex
}

// headerOf is that of a key.
func headerOf(key driver.ProgramKey) header {
	return header{schema, key.Device, key.Driver, hex.EncodeToString(key.Source[:])}
}

// Blob returns the name of the blob that holds the binary of a key.
func Blob(key driver.ProgramKey) string {
	text, err := json.Marshal(headerOf(key))
	if err != nil {
		panic("BUG: a header does not encode: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return Folder + hex.EncodeToString(sum[:16])
}

// Encode writes a blob. Names of devices and drivers are those of vendors; what is no text of reasonable size is
// refused.
func Encode(made *driver.Prebuilt) ([]byte, error) {
	text, err := json.Marshal(headerOf(made.Key))
	if err != nil {
		return nil, err
	}
	if len(text) >= maxHeader || len(made.Binary) == 0 {
		return nil, diag.New(diag.ClassRun, "write the binary of a program for device %q: %d bytes of names, want less than "+
			"%d, and %d bytes of binary, want some", made.Key.Device, len(text), maxHeader, len(made.Binary))
	}
	return append(append(text, '\n'), made.Binary...), nil
}

// Decode returns the binary in a blob, and whether it is that of the key. The bytes are a part of data.
func Decode(data []byte, key driver.ProgramKey) (binary []byte, ok bool) {
	line, _, found := bytes.Cut(data[:min(len(data), maxHeader)], []byte("\n"))
	if !found {
		return nil, false
	}
	want, err := json.Marshal(headerOf(key))
	if err != nil || !bytes.Equal(line, want) {
		return nil, false
	}
	binary = data[len(line)+1:]
	return binary, len(binary) > 0
}

// Described returns the device and driver that a blob's binary is for; ok is false for what is none.
func Described(data []byte) (identity driver.Identity, ok bool) {
	line, _, found := bytes.Cut(data[:min(len(data), maxHeader)], []byte("\n"))
	var head header
	if !found || json.Unmarshal(line, &head) != nil || head.Schema != schema {
		return driver.Identity{}, false
	}
	return driver.Identity{Device: head.Device, Driver: head.Driver}, true
}

// Store is the programs of a bundle and of a cache. It implements driver.Programs.
type Store struct {
	// Bundle reads a verified blob, and reports whether there is one of that name.
	Bundle func(name string) ([]byte, bool)
	// Cache keeps what was built here; nil: nothing is kept.
	Cache *cas.Cache
	// Refuse forbids to build from source, and to use what was.
	Refuse bool

	mu    sync.Mutex
	err   error // why something could not be kept
	taken Taken
}

// Taken counts where programs came from.
type Taken struct{ Bundle, Cache, Source int }

// MaxBytes bounds the cache.
const MaxBytes = 256 << 20

// keyOf returns the cache's key of a program.
func keyOf(key driver.ProgramKey) cas.Key {
	return cas.KeyOf("program", key.Device, key.Driver, hex.EncodeToString(key.Source[:]))
}

// Binary takes a program from the bundle, else from the cache.
func (s *Store) Binary(key driver.ProgramKey) []byte {
	if s.Bundle != nil {
		if data, ok := s.Bundle(Blob(key)); ok {
			if binary, ok := Decode(data, key); ok {
				s.count(func(taken *Taken) { taken.Bundle++ })
				return binary
			}
		}
	}
	if s.Cache == nil || s.Refuse {
		return nil
	}
	data, err := s.Cache.Read(keyOf(key))
	if err != nil {
		return nil // it was never built here, or is damaged
	}
	s.count(func(taken *Taken) { taken.Cache++ })
	return data
}

// Built keeps a program in the cache. Where that fails it is built again the next time.
func (s *Store) Built(key driver.ProgramKey, binary []byte) {
	s.count(func(taken *Taken) { taken.Source++ })
	if s.Cache == nil {
		return
	}
	entry, err := s.Cache.Put(keyOf(key), func(path string) error { return os.WriteFile(path, binary, 0o600) })
	if err == nil {
		err = entry.Close()
	}
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.err = err
	}
}

// Strict reports whether building from source is refused.
func (s *Store) Strict() bool { return s.Refuse }

// count notes where a program came from.
func (s *Store) count(note func(*Taken)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	note(&s.taken)
}

// Taken tells where programs came from, and why something could not be kept.
func (s *Store) Taken() (Taken, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken, s.err
}

// Use gives the store to every driver that builds programs.
func Use(drivers []driver.Driver, store driver.Programs) []driver.Driver {
	out := make([]driver.Driver, len(drivers))
	for i, drv := range drivers {
		out[i] = drv
		if builder, ok := drv.(driver.Prebuilder); ok {
			out[i] = builder.WithPrograms(store)
		}
	}
	return out
}
