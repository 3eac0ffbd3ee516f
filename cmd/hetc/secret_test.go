//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/require"
)

// spy is a library that writes down, when it is loaded, what it and the process that started its own see of the
// environment.
const spy = `
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void copy(FILE *out, const char *path) {
	FILE *in = fopen(path, "r");
	int c;
	while (in && (c = fgetc(in)) != EOF) fputc(c ? c : '\n', out);
	if (in) fclose(in);
}
__attribute__((constructor)) static void look(void) {
	extern char **environ;
	char parent[64];
	FILE *out = fopen(getenv("HETC_TEST_SEEN"), "a");
	fprintf(out, "loaded\n");
	for (char **e = environ; *e; e++) fprintf(out, "%s\n", *e);
	copy(out, "/proc/self/environ");
	snprintf(parent, sizeof parent, "/proc/%d/environ", (int)getppid());
	copy(out, parent);
	fclose(out);
}
`

// A signing key in the environment is seen by the command that signs alone: not by a library in the same process, not by
// one in a process of its own, with a key given or not.
func TestSigningKeyIsSeenByNobody(t *testing.T) {
	require.Slow(t)
	if err := native.Supported(); err != nil {
		t.Skip(err)
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("the library for tests needs a C compiler: %v", err)
	}
	d := engineDir(t)
	d.write("spy.c", spy)
	for _, lib := range []string{"libonnxruntime.so", "libhighs.so"} {
		if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", d.at(lib), d.at("spy.c")).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	seen := d.at("seen")
	key := d.read(filepath.Join(artifacts(t).path, "k.key"))
	for what, line := range map[string]string{
		"in this process":         "doctor",
		"in a process of its own": "solve --soc snapdragon-8gen3 --costs costs.yaml --model $M --workload w.yaml --engine highs-native -o plan.yaml",
	} {
		d.must(os.RemoveAll(seen))
		c := exec.Command("hetc", d.words(line)...)
		c.Dir = d.path
		c.Env = append(os.Environ(), native.EnvDir+"="+d.path, "HETC_TEST_SEEN="+seen, "HETC_SIGNING_KEY="+key, "GITHUB_TOKEN=a token")
		out, _ := c.CombinedOutput()
		text, err := os.ReadFile(seen)
		if err != nil || !strings.Contains(string(text), "loaded\n") || !strings.Contains(string(text), "HETC_TEST_SEEN=") {
			t.Fatalf("%s: the library was not loaded: %v\n%s", what, err, out)
		}
		if strings.Contains(string(text), "PRIVATE KEY") || strings.Contains(string(text), "HETC_SIGNING_KEY") {
			t.Errorf("%s: the key is seen", what)
		}
	}
}
