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

// code returns the paths of those files of the result that are executed, and so have a pinned digest.
func (r *recipe) code() (paths []string) {
	for _, file := range r.Files {
		if !slices.Contains(documents, path.Ext(file.To)) {
			paths = append(paths, file.To)
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

// printPins fetches the packages of the named recipes for every platform and prints the rows of internal/pins for
// them. It is how the table follows a new version.
func printPins(ctx context.Context, out io.Writer, wanted []string) error {
	temp, err := os.MkdirTemp("", "hetc-pins")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)

	for i := range recipes {
		recipe := &recipes[i]
		if !slices.Contains(wanted, recipe.Name) || len(recipe.code()) == 0 {
			continue
		}
		if recipe.Terms != "" {
			fmt.Fprintf(os.Stderr, "%s: %s the package\n", recipe.Name, recipe.Terms)
		}
		dir := filepath.Join(temp, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := recipe.build(ctx, dir, filepath.Join(dir, "out")); err != nil {
			return fmt.Errorf("%s for %s/%s: %w", recipe.Name, recipe.OS, recipe.Arch, err)
		}
		fmt.Fprintf(out, "\t{%q, %q, %q, map[string]string{\n", recipe.Name, recipe.OS, recipe.Arch)
		for _, name := range recipe.code() {
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

// digest returns the sha256 of a file in hexadecimal digits.
func digest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", hash.Sum(nil)), nil
}
