package native

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hetc/hetc/internal/pins"
)

// madeBy lies in every folder that `make deps` has made.
const madeBy = "recipe.json"

// pinned refuses a file of a folder that `make deps` made, or of a checkout's .deps, unless it and all its neighbours
// that the program knows are what was fetched: a library opens others beside it. A folder that the user filled is the
// user's business, and so is one whose contents internal/pins does not list. The error is an *Error.
//
// A file is read once for its digest and then opened by the system's loader. A change at that
// moment is not noticed: this finds earlier ones.
func (s Search) pinned(file string, checkout bool) error {
	name, below, _ := strings.Cut(filepath.ToSlash(s.Folder), "/")
	root := filepath.Dir(file)
	if below != "" {
		root = strings.TrimSuffix(root, string(filepath.Separator)+filepath.FromSlash(below))
	}
	if _, err := os.Stat(filepath.Join(root, madeBy)); err != nil && !checkout {
		return nil
	}
	known := pins.Of(name, runtime.GOOS, runtime.GOARCH)
	if known == nil {
		return nil
	}
	rel, err := filepath.Rel(root, file)
	if err != nil {
		return err
	}
	if known[filepath.ToSlash(rel)] == "" {
		if s.File != "" {
			return nil // the user named it
		}
		return &Error{Path: file, Problem: Altered, Detail: "it fetches no file of that name"}
	}
	for _, rel := range slices.Sorted(maps.Keys(known)) {
		path := filepath.Join(root, filepath.FromSlash(rel))
		got, err := digest(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return &Error{Path: path, Problem: Unreadable, Detail: reason(err)}
		case got != known[rel]:
			return &Error{Path: path, Problem: Altered, Detail: fmt.Sprintf("sha256 %s, want %s", got, known[rel])}
		}
	}
	return nil
}

// digests are those of files that were read already, which have not changed since.
var digests sync.Map // digestKey -> string

// digestKey identifies the state of a file whose digest was computed.
type digestKey struct {
	path     string
	size     int64
	modified time.Time
}

// digest returns the sha256 of a file in hexadecimal digits.
func digest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return "", err
	}
	key := digestKey{path, st.Size(), st.ModTime()}
	if sum, ok := digests.Load(key); ok {
		return sum.(string), nil
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	sum := fmt.Sprintf("%x", hash.Sum(nil))
	digests.Store(key, sum)
	return sum, nil
}
