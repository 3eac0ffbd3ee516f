package child

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// The test binary also is a child, and a process with a key that looks for it everywhere.
func TestMain(m *testing.M) {
	switch os.Getenv("HETC_TEST_CHILD") {
	case "environment":
		os.Stdout.WriteString(strings.Join(os.Environ(), "\n"))
		os.Exit(0)
	case "secret":
		TakeSigningKey()
		raw, _ := os.ReadFile("/proc/self/environ") // empty where there is none
		own := strings.Join(os.Environ(), "\n")
		text, have := SigningKey()
		if strings.Contains(own, "PEM") || strings.Contains(string(raw), "PEM") || !strings.Contains(own, "OTHER=PAM") || text != "PEM text" || !have {
			os.Stdout.WriteString("environment " + own + "\nprocess " + string(raw) + "\nkey " + text)
			os.Exit(1)
		}
		if runtime.GOOS == "linux" && !strings.Contains(string(raw), "OTHER=PAM") {
			os.Stdout.WriteString("another variable is gone")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A child process gets what it needs and nothing else.
func TestEnv(t *testing.T) {
	for name, value := range map[string]string{
		EnvSigningKey: "secret", "HETC_SIGNING_KEY_FILE": "k", "AWS_SECRET_ACCESS_KEY": "secret", "GITHUB_TOKEN": "secret", "LD_PRELOAD": "", "LCX": "x",
		"HETC_NATIVE_DIR": "/libraries", "LC_ALL": "C", "OMP_NUM_THREADS": "2", "TMPDIR": "/before", "HETC_TEST_CHILD": "environment",
	} {
		t.Setenv(name, value)
	}
	c := exec.Command(os.Args[0])
	c.Env = Env("TMPDIR=/after", "EXTRA=1")
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(string(out), "\n")
	for _, want := range []string{"HETC_NATIVE_DIR=/libraries", "LC_ALL=C", "OMP_NUM_THREADS=2", "TMPDIR=/after", "EXTRA=1", "PATH=" + os.Getenv("PATH")} {
		if !slices.Contains(got, want) {
			t.Errorf("the child has no %s: %q", want, got)
		}
	}
	for _, never := range []string{"secret", "SIGNING", "TOKEN", "LD_PRELOAD", "LCX", "/before"} {
		if strings.Contains(string(out), never) {
			t.Errorf("the child has %s: %q", never, got)
		}
	}
}

// Once taken, the key is in no environment that a library or another process could look at.
func TestTakeSigningKey(t *testing.T) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "HETC_TEST_CHILD=secret", EnvSigningKey+"=PEM text", "OTHER=PAM")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The key is handed out once.
func TestSigningKey(t *testing.T) {
	if text, have := SigningKey(); have {
		t.Fatalf("got %q", text)
	}
	t.Setenv(EnvSigningKey, "")
	for range 2 {
		if set, filled := HasSigningKey(); !set || filled {
			t.Errorf("an empty key: set %v, filled %v", set, filled)
		}
	}
	if text, have := SigningKey(); text != "" || !have {
		t.Errorf("got %q, %v", text, have)
	}
	if _, have := SigningKey(); have {
		t.Error("the key was handed out twice")
	}
	if set, _ := HasSigningKey(); set {
		t.Error("the key is still there")
	}
}
