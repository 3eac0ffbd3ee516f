package programs

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/runtime/driver"
)

var key = driver.ProgramKey{Identity: driver.Identity{Device: "a GPU", Driver: "CL 3.0"}, Source: [32]byte{1}}

func encoded(t testing.TB) []byte {
	t.Helper()
	data, err := Encode(&driver.Prebuilt{Key: key, Binary: []byte("binary\nof a program")})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A binary is that of one device, driver and source.
func TestBlob(t *testing.T) {
	data := encoded(t)
	if binary, ok := Decode(data, key); !ok || string(binary) != "binary\nof a program" {
		t.Errorf("got %q, %v", binary, ok)
	}
	if identity, ok := Described(data); !ok || identity != key.Identity {
		t.Errorf("described as %+v, %v", identity, ok)
	}
	names := map[string]bool{Blob(key): true}
	for _, change := range []func(*driver.ProgramKey){
		func(k *driver.ProgramKey) { k.Device += " " },
		func(k *driver.ProgramKey) { k.Driver = "CL 3.1" },
		func(k *driver.ProgramKey) { k.Source[31] = 1 },
		func(k *driver.ProgramKey) { k.Device, k.Driver = k.Driver, k.Device },
	} {
		other := key
		change(&other)
		if _, ok := Decode(data, other); ok || names[Blob(other)] {
			t.Errorf("taken as that of %+v, or in the same blob", other)
		}
		names[Blob(other)] = true
	}
	for _, bad := range [][]byte{nil, data[:10], []byte("{}\nbinary"), append([]byte(" "), data...),
		data[:bytes.IndexByte(data, '\n')+1]} {
		if _, ok := Decode(bad, key); ok {
			t.Errorf("taken: %q", bad)
		}
	}
	long := key
	long.Device = strings.Repeat("x", maxHeader)
	for _, bad := range []driver.Prebuilt{{Key: key}, {Key: long, Binary: []byte("x")}} {
		if _, err := Encode(&bad); err == nil {
			t.Error("written what is not read")
		}
	}
}

// The bundle comes first, then the cache, which holds what was built, and neither counts where it is damaged.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	open := func() *cas.Cache {
		cache, err := cas.Open(dir, cas.Options{MaxBytes: MaxBytes})
		if err != nil {
			t.Fatal(err)
		}
		return cache
	}
	blobs := map[string][]byte{}
	store := &Store{Cache: open(), Bundle: func(name string) ([]byte, bool) { data, ok := blobs[name]; return data, ok }}
	if store.Binary(key) != nil {
		t.Error("a binary out of nothing")
	}
	store.Built(key, []byte("built here"))
	if got := string(store.Binary(key)); got != "built here" {
		t.Errorf("from the cache: %q", got)
	}
	strict := &Store{Cache: store.Cache, Refuse: true}
	if !strict.Strict() || strict.Binary(key) != nil {
		t.Error("a strict store has what was built here")
	}
	blobs[Blob(key)] = encoded(t)
	if got := string(store.Binary(key)); got != "binary\nof a program" {
		t.Errorf("from the bundle: %q", got)
	}
	blobs[Blob(key)] = []byte("{}\nbinary of another one")
	if got := string(store.Binary(key)); got != "built here" {
		t.Errorf("beside another one's in the bundle: %q", got)
	}
	if taken, err := store.Taken(); err != nil || taken != (Taken{Bundle: 1, Cache: 2, Source: 1}) {
		t.Errorf("%+v, %v", taken, err)
	}
	err := filepath.WalkDir(filepath.Join(dir, "v1", "data"), func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			return os.WriteFile(path, []byte("damaged"), 0o600)
		}
		return err
	})
	if err != nil || store.Binary(key) != nil {
		t.Errorf("a damaged binary is taken, %v", err)
	}
}

// What cannot be kept is told, and used all the same.
func TestStoreThatIsFull(t *testing.T) {
	cache, err := cas.Open(t.TempDir(), cas.Options{MaxBytes: MaxBytes, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	store := &Store{Cache: cache}
	store.Built(key, []byte("x"))
	if _, err := store.Taken(); err == nil {
		t.Error("nobody is told that nothing is kept")
	}
}

// builder is a driver that builds programs.
type builder struct {
	driver.Driver
	store driver.Programs
}

func (b builder) WithPrograms(store driver.Programs) driver.Driver { return builder{b.Driver, store} }

func (builder) Prebuild(context.Context, driver.Config, []byte) ([]driver.Prebuilt, error) {
	return nil, nil
}

type plain struct{ driver.Driver }

func TestUse(t *testing.T) {
	store := &Store{}
	got := Use([]driver.Driver{plain{}, builder{}}, store)
	if got[0] != (plain{}) || got[1].(builder).store != driver.Programs(store) {
		t.Errorf("%+v", got)
	}
}
