package bundling

import (
	"fmt"
	"os"
	"time"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/matrix"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/emit/compile/qnn"
	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/runtime/driver/host"
)

// memo caches the results that emit computed for graphs that hold their weights, in the cache of
// compiled graphs.
type memo struct {
	cache *cas.Cache
	maker string // this program on this machine
	dir   string // for what waits for the bundle
}

// openMemo opens the memo, nil where no graph holds its weights or there is no cache.
func openMemo(o *emit.Options) (*memo, error) {
	embeds := o.Target != nil
	for _, proc := range o.Plan.Procs {
		embeds = embeds || proc.WeightsInArtifacts
	}
	dir := bindings.CompiledCache()
	if !embeds || dir == "" {
		return nil, nil
	}
	cache, err := cas.Open(dir, cas.Options{MaxBytes: qnn.CacheBytes, Now: time.Now})
	if err != nil {
		return nil, err
	}
	opened := &memo{cache: cache}
	if opened.maker, err = programDigest(cache); err == nil {
		opened.dir, err = cache.Scratch()
	}
	if err != nil {
		_ = cache.Close() // the error before it says more
		return nil, err
	}
	// Results include what was executed here, so they depend on this CPU and its kernels.
	opened.maker += " " + host.Fingerprint() + " " + host.Kernels()
	return opened, nil
}

// Recall returns the result kept under a key, if there is one.
func (m *memo) Recall(key string) ([]byte, bool) {
	b, err := m.cache.Read(cas.KeyOf("emit", m.maker, key))
	return b, err == nil
}

// Keep stores a result under a key.
func (m *memo) Keep(key string, result []byte) error {
	entry, err := m.cache.Put(cas.KeyOf("emit", m.maker, key),
		func(path string) error { return os.WriteFile(path, result, 0o600) })
	if err != nil {
		return err
	}
	return entry.Close()
}

// programDigest returns the SHA-256 of this program. It is cached under the file's path, size and time
// of change, because hashing takes longer than many a compilation.
func programDigest(cache *cas.Cache) (string, error) {
	path, err := os.Executable()
	if err != nil {
		// Hashing is always right, only slower.
		return matrix.Program()
	}
	st, err := os.Stat("/proc/self/exe") // what runs, even when its file was replaced
	if err != nil {
		st, err = os.Stat(path)
	}
	if err != nil {
		return matrix.Program()
	}
	key := cas.KeyOf("program", path, fmt.Sprint(st.Size()), fmt.Sprint(st.ModTime().UnixNano()))
	if digest, _, ok, err := cache.Sum(key); err == nil && ok {
		return digest.String(), nil
	}
	text, err := matrix.Program()
	if err != nil {
		return "", err
	}
	digest, err := cas.ParseDigest(text)
	if err != nil {
		return "", err
	}
	return text, cache.Note(key, digest, st.Size())
}
