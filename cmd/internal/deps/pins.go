package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/hetc/hetc/internal/pins"
)

// documents are extensions of the files of a package that nothing executes.
var documents = []string{"", ".txt", ".md", ".pdf"} // LICENSE has none

// code are the paths of those files of the result that are executed, and so have a pinned digest.
func (r *recipe) code() (paths []string) {
	for _, f := range r.Files {
		if !slices.Contains(documents, path.Ext(f.To)) {
			paths = append(paths, f.To)
		}
	}
	return paths
}

// verify compares the files of a folder with their pinned digests.
func (r *recipe) verify(dir string) error {
	pinned := pins.Of(r.Name, r.OS, r.Arch)
	for _, name := range r.code() {
		want := pinned[name]
		if want == "" {
			continue
		}
		got, err := digest(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("file %q has sha256 %s, want %s, which internal/pins holds", name, got, want)
		}
	}
	return nil
}

// printPins fetches the packages of the named recipes for every platform and prints the rows of internal/pins for them. It
// is how the table follows a new version.
func printPins(ctx context.Context, out io.Writer, wanted []string) error {
	temp, err := os.MkdirTemp("", "hetc-pins")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)

	for i := range recipes {
		r := &recipes[i]
		if !slices.Contains(wanted, r.Name) || len(r.code()) == 0 {
			continue
		}
		if r.Terms != "" {
			fmt.Fprintf(os.Stderr, "%s: %s the package\n", r.Name, r.Terms)
		}
		dir := filepath.Join(temp, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := r.build(ctx, dir, filepath.Join(dir, "out")); err != nil {
			return fmt.Errorf("%s for %s/%s: %w", r.Name, r.OS, r.Arch, err)
		}
		fmt.Fprintf(out, "\t{%q, %q, %q, map[string]string{\n", r.Name, r.OS, r.Arch)
		for _, name := range r.code() {
			sum, err := digest(filepath.Join(dir, "out", filepath.FromSlash(name)))
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "\t\t%q: %q,\n", name, sum)
		}
		fmt.Fprint(out, "\t}},\n")
	}
	return nil
}

// digest is the sha256 of a file in hexadecimal digits.
func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
