//go:build unix

package main

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/pins"
)

func zipped(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, text := range files {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// smallWheel is a recipe of files in a wheel, which a stand-in for pip copies; script is what else that does.
func smallWheel(t *testing.T, files map[string]string, script string) (r recipe, bin string) {
	t.Helper()
	dir := t.TempDir()
	b := zipped(t, files)
	bin = filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "w.whl"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	pip := "#!/bin/sh\necho $@ >> '" + dir + "/pip.log'\ncp '" + dir + "/w.whl' lib-1.0-cp311.whl\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(bin, "pip"), []byte(pip), 0o755); err != nil {
		t.Fatal(err)
	}
	return recipe{Name: "lib", OS: runtime.GOOS, Arch: runtime.GOARCH, Packages: []pkg{{"lib", "1.0", fmt.Sprintf("%x", sha256.Sum256(b)), "some_platform"}},
		Files: []file{{"lib/capi/lib.so", "lib.so"}, {"lib/LICENSE", "LICENSE"}}}, bin
}

var wheelFiles = map[string]string{"lib/capi/lib.so": "library", "lib/LICENSE": "free", "lib/other.py": "unwanted"}

// Files of a wheel are taken once, and again when the pin changes or one is gone.
func TestMakeOfWheel(t *testing.T) {
	r, bin := smallWheel(t, wheelFiles, "")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	dir := t.TempDir()
	make := func(want bool) {
		t.Helper()
		made, err := r.make(t.Context(), dir)
		if err != nil || made != want {
			t.Fatalf("made %v, %v; want %v", made, err, want)
		}
		got, err := os.ReadFile(filepath.Join(dir, "lib", "lib.so"))
		if names := entries(t, filepath.Join(dir, "lib")); err != nil || string(got) != "library" || !slices.Equal(names, []string{"LICENSE", "lib.so", "recipe.json"}) {
			t.Fatalf("%q in %q, %v", got, names, err)
		}
		if left := entries(t, dir); !slices.Equal(left, []string{"lib"}) {
			t.Fatalf("left %q", left)
		}
	}
	make(true)
	make(false)
	if err := os.Remove(filepath.Join(dir, "lib", "lib.so")); err != nil {
		t.Fatal(err)
	}
	make(true)
	r.Packages[0].Version = "1.1"
	make(true)
	log, err := os.ReadFile(filepath.Join(filepath.Dir(bin), "pip.log"))
	if err != nil || !strings.Contains(string(log), "download --quiet --disable-pip-version-check --no-input --no-deps --only-binary=:all: --implementation cp --python-version 311 --platform some_platform --dest . lib==1.1") {
		t.Errorf("pip was called as\n%s%v", log, err)
	}
	if err := os.Rename(filepath.Join(bin, "pip"), filepath.Join(bin, "pip3")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	if _, err := exec.LookPath("pip"); err != nil { // with pip3 alone
		r.Packages[0].Version = "1.2"
		make(true)
	}
}

// Whatever goes wrong with a wheel is named, and nothing is left.
func TestMakeOfWheelRefuses(t *testing.T) {
	without := map[string]string{"lib/LICENSE": "free"}
	for name, c := range map[string]struct {
		files  map[string]string
		script string
		change func(*recipe)
		want   string
	}{
		"other digest":  {wheelFiles, "", func(r *recipe) { r.Packages[0].SHA256 = strings.Repeat("1", 64) }, "want 11111111"},
		"file missing":  {without, "", func(*recipe) {}, `no file "lib/capi/lib.so"`},
		"two archives":  {wheelFiles, "touch second.whl", func(*recipe) {}, "left 2 files"},
		"client fails":  {wheelFiles, "echo no network >&2; exit 3", func(*recipe) {}, "no network"},
		"nothing comes": {wheelFiles, "rm *.whl", func(*recipe) {}, "left 0 files"},
		"other system":  {wheelFiles, "", func(r *recipe) { r.OS = "plan9" }, "the package is for plan9"},
	} {
		t.Run(name, func(t *testing.T) {
			r, bin := smallWheel(t, c.files, c.script)
			t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
			c.change(&r)
			dir := t.TempDir()
			if made, err := r.make(t.Context(), dir); made || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("made %v: %v, want an error with %q", made, err, c.want)
			}
			if left := entries(t, dir); len(left) > 0 {
				t.Errorf("left %q", left)
			}
		})
	}
	r, _ := smallWheel(t, wheelFiles, "")
	t.Setenv("PATH", t.TempDir())
	if _, err := r.make(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "needs pip in PATH") {
		t.Errorf("without pip: %v", err)
	}
}

// Wheels cannot write outside their folder, nor make links, and only what is wanted comes out.
func TestUnzip(t *testing.T) {
	dir := t.TempDir()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range []string{"a/x", "a/../../../b", "/a/c", "a/../c/d", "c/e"} {
		if _, err := w.Create(name); err != nil {
			t.Fatal(err)
		}
	}
	link := &zip.FileHeader{Name: "a/link"}
	link.SetMode(os.ModeSymlink | 0o777)
	if _, err := w.CreateHeader(link); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "a.whl")
	if err := os.WriteFile(archive, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "deep", "to")
	if err := unpack(archive, to, "a/", "b"); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && p != archive {
			got = append(got, p)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{filepath.Join(to, "a", "x")}; !slices.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
	for _, text := range []string{"", "no archive", b.String()[:b.Len()-10]} {
		if err := os.WriteFile(archive, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := unpack(archive, to, "a/"); err == nil {
			t.Errorf("a broken archive of %d bytes was unpacked", len(text))
		}
	}
	left := int64(10)
	if err := write(to, "large", strings.NewReader(strings.Repeat("x", 11)), &left); err == nil {
		t.Error("a file above the bound was written")
	}
}

// Every file of a package that is executed has a digest in the programs, and nothing else has.
func TestWhatIsExecutedIsPinned(t *testing.T) {
	for i := range recipes {
		r := &recipes[i]
		if r.Source != "" || r.Requirements != "" {
			continue // built here, or installed by pip with the digests of the wheels
		}
		pinned := slices.Sorted(maps.Keys(pins.Of(r.Name, r.OS, r.Arch)))
		if code := slices.Sorted(slices.Values(r.code())); len(code) == 0 || !slices.Equal(code, pinned) {
			t.Errorf("%s %s/%s: internal/pins has digests of %q, want of %q: print them with -pins %s", r.Name, r.OS, r.Arch, pinned, code, r.Name)
		}
	}
}

// Pins are whole, and every platform's library has a name that hetc looks for.
func TestRecipes(t *testing.T) {
	hex := regexp.MustCompile(`^[0-9a-f]{64}$`)
	names := map[string]*regexp.Regexp{
		"linux":   regexp.MustCompile(`^libonnxruntime\.so(\..*)?$`),
		"darwin":  regexp.MustCompile(`^libonnxruntime(\..*)?\.dylib$`),
		"windows": regexp.MustCompile(`^onnxruntime\.dll$`),
	}
	for _, r := range slices.Concat([]recipe{llamaCpp, highs, qnn}, onnxRuntime, highsNative) {
		found := r.Name != "onnxruntime" && r.Name != "highs-native"
		for _, p := range r.Packages {
			if !hex.MatchString(p.SHA256) || p.Version == "" {
				t.Errorf("%s %s/%s: package %+v", r.Name, r.OS, r.Arch, p)
			}
		}
		for _, f := range r.Files {
			if !filepath.IsLocal(f.From) || filepath.Base(f.To) != f.To && f.To != f.From {
				t.Errorf("%s: file %+v", r.Name, f)
			}
			found = found || names[r.OS].MatchString(f.To) || r.Name == "highs-native" && slices.Contains([]string{"libhighs.so", "libhighs.dylib", "highs.dll"}, f.To)
		}
		if !found {
			t.Errorf("%s %s/%s: no library among %+v", r.Name, r.OS, r.Arch, r.Files)
		}
		if !slices.ContainsFunc(r.Files, func(f file) bool { return path.Base(f.To) == "LICENSE" }) && r.Licence == "" {
			t.Errorf("%s: no licence", r.Name)
		}
	}
	for _, c := range []struct{ name, os, arch, want string }{
		{"onnxruntime", "linux", "arm64", "manylinux_2_28_aarch64"}, {"onnxruntime", "windows", "amd64", "win_amd64"},
		{"onnxruntime", "plan9", "amd64", "-"}, {"onnxruntime", "darwin", "amd64", "-"}, {"highs", "plan9", "mips", ""},
		{"highs-native", "linux", "arm64", "manylinux2014_aarch64"}, {"highs-native", "windows", "arm64", "-"}, {"llama.cpp", "linux", "amd64", ""},
		{"onnxruntime-qnn", "linux", "amd64", "manylinux_2_35_x86_64"}, {"onnxruntime-qnn", "linux", "arm64", "-"}, {"onnxruntime-qnn", "windows", "arm64", "-"},
	} {
		r, err := choose(c.name, c.os, c.arch)
		if err != nil || (r == nil) != (c.want == "-") || r != nil && r.Packages[0].Wheel != c.want {
			t.Errorf("%+v: got %+v, %v", c, r, err)
		}
	}
	if _, err := choose("nothing", "linux", "amd64"); err == nil || !strings.Contains(err.Error(), "onnxruntime, highs, highs-native, llama.cpp, llama-server, python-peers, onnxruntime-qnn") {
		t.Errorf("unknown name: %v", err)
	}
}

// What has terms says them, and where they lie, before it is fetched.
func TestTerms(t *testing.T) {
	for _, f := range qnn.TermFiles {
		if !slices.ContainsFunc(qnn.Files, func(x file) bool { return x.To == f }) {
			t.Errorf("terms %q are not kept", f)
		}
	}
	if !strings.Contains(qnn.Terms, "accepts") {
		t.Errorf("terms %q do not say that fetching accepts them", qnn.Terms)
	}
	for _, r := range slices.Concat([]recipe{llamaCpp, highs}, onnxRuntime, highsNative) {
		if r.Terms != "" {
			t.Errorf("%s has terms, and is not fetched by a command of its own", r.Name)
		}
	}
}

// What fails does not keep the others from being made, and everything that failed is told.
func TestRunGoesOn(t *testing.T) {
	bin := t.TempDir()
	for _, tool := range []string{"npm", "pip"} {
		if err := os.WriteFile(filepath.Join(bin, tool), []byte("#!/bin/sh\necho no network for "+tool+" >&2\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	dir := filepath.Join(t.TempDir(), "new")
	err := run(t.Context(), dir, []string{"nothing", "onnxruntime", "highs"})
	want := []string{`unknown name "nothing"`, "highs: npm", "no network for npm"}
	if r, _ := choose("onnxruntime", runtime.GOOS, runtime.GOARCH); r != nil {
		want = append(want, "onnxruntime: pip", "no network for pip")
	}
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v: want %q", err, w)
		}
	}
	if left := entries(t, dir); !slices.Equal(left, []string{".lock"}) {
		t.Errorf("left %q", left)
	}
	if err := run(t.Context(), dir, nil); err == nil {
		t.Error("nothing was named, and nothing said")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ended, dir, []string{"highs"}); err == nil {
		t.Error("an ended run succeeded")
	}
}
