package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// fetch downloads a package into an empty folder and checks it.
func fetch(ctx context.Context, dir string, wanted pkg) (archive string, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	// install scripts never run: only the archive is wanted
	client, args := "npm", []string{"pack", "--silent", "--ignore-scripts", wanted.Name + "@" + wanted.Version}
	if wanted.Wheel != "" {
		client = "pip"
		if _, err := exec.LookPath(client); err != nil {
			client = "pip3"
		}
		// The library in a wheel does not depend on the version of Python: one is named so that the archive is.
		args = []string{"download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps",
			"--only-binary=:all:",
			"--implementation", "cp", "--python-version", "311", "--platform", wanted.Wheel, "--dest", ".",
			wanted.Name + "==" + wanted.Version}
	}
	if err := command(ctx, dir, client, args...); err != nil {
		return "", err
	}
	found, err := os.ReadDir(dir)
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%s %s %s %s left %d files, want one archive", client, args[0], wanted.Name,
			wanted.Version, len(found))
	}
	archive = filepath.Join(dir, found[0].Name())
	got, err := digest(archive)
	if err != nil {
		return "", err
	}
	if got != wanted.SHA256 {
		return "", fmt.Errorf("package %s %s has sha256 %s, want %s: it is not the one that was pinned, nothing of "+
			"it is used", wanted.Name, wanted.Version, got, wanted.SHA256)
	}
	return archive, nil
}

// mostUnpacked bounds what comes out of one archive; the digest has been checked, so this only guards against a
// wrong pin.
const mostUnpacked = 1 << 30

// unpack writes the regular files of an npm archive or a wheel whose path is one of wanted, or below one that ends in
// a slash. Paths of npm archives are those below their folder package.
func unpack(archive, dir string, wanted ...string) error {
	if strings.HasSuffix(archive, ".whl") {
		return unzip(archive, dir, wanted)
	}
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	left := int64(mostUnpacked)
	for archived := tar.NewReader(unzipped); ; {
		header, err := archived.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		// only regular files at local paths, so that nothing is written outside dir
		name, ok := strings.CutPrefix(path.Clean(header.Name), "package/")
		if !ok || header.Typeflag != tar.TypeReg || !filepath.IsLocal(name) || !below(name, wanted) {
			continue
		}
		if err := write(dir, name, archived, &left); err != nil {
			return err
		}
	}
}

// unzip extracts the wanted files of an archive into a directory.
func unzip(archive, dir string, wanted []string) error {
	closer, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer closer.Close()
	left := int64(mostUnpacked)
	for _, file := range closer.File {
		name := path.Clean(file.Name)
		if !file.Mode().IsRegular() || !filepath.IsLocal(name) || !below(name, wanted) {
			continue
		}
		closer, err := file.Open()
		if err != nil {
			return err
		}
		err = write(dir, name, closer, &left)
		closer.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// write makes one file of at most left bytes, which it counts down.
func write(dir, name string, r io.Reader, left *int64) error {
	to := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	copied, err := io.Copy(file, io.LimitReader(r, *left+1))
	if e := file.Close(); err == nil {
		err = e
	}
	if *left -= copied; err == nil && *left < 0 {
		err = fmt.Errorf("more than %d bytes", mostUnpacked)
	}
	return err
}

// below reports whether a file is wanted: itself, or a folder that it lies in.
func below(name string, wanted []string) bool {
	for _, w := range wanted {
		if name == w || strings.HasSuffix(w, "/") && strings.HasPrefix(name, w) {
			return true
		}
	}
	return false
}
