package served

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/serving"
)

// What is written is read back, to the nanosecond.
func TestReadWhatIsWritten(t *testing.T) {
	times := []serving.CallTimes{
		{CallKey: serving.CallKey{Kind: serving.ChunkCall, Size: 32}, Calls: 12345, ServedNS: 7_654_321_987, CallNS: 7_000_000_001, PlannedNS: 6_999_999_999},
		{CallKey: serving.CallKey{Kind: serving.LastChunkCall, Size: 32}, Calls: 2, ServedNS: 3, CallNS: 2, PlannedNS: 1},
		{CallKey: serving.CallKey{Kind: serving.LastChunkCall, Size: 32, After: serving.AfterIdle(50e6)}, Calls: 1, ServedNS: 900_001, CallNS: 400_000, PlannedNS: 350_000},
		{CallKey: serving.CallKey{Kind: serving.DecodeCall, Size: 4}, Calls: 1 << 40, ServedNS: 1 << 51, CallNS: 1 << 50, PlannedNS: 1 << 49},
		{CallKey: serving.CallKey{Kind: serving.BesideCall, Size: 1}, Calls: 7, ServedNS: 1000, CallNS: 900},
		{CallKey: serving.CallKey{Kind: serving.VerifyCall, Size: 3}, Calls: 7, ServedNS: 1000, CallNS: 900},
	}
	path := filepath.Join(t.TempDir(), "served.txt")
	if err := Write(path, times); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := `hetserve_calls_total{after="idle up to 160 ms",call="last chunk",size="32"} 1`; !strings.Contains(string(text), want) {
		t.Errorf("want %s in\n%s", want, text)
	}
	// beside others, as a server shows them
	more := append([]byte("# TYPE up gauge\nup{a=\"b\"} 1\n"), text...)
	if err := os.WriteFile(path, more, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil || !slices.Equal(got, times) {
		t.Errorf("got %v (%v), want %v", got, err, times)
	}
}

func TestRefusesWhatIsNoTime(t *testing.T) {
	labels := `{after="the same",call="decode",size="1"}`
	good := "hetserve_calls_total" + labels + " 2\nhetserve_call_seconds_total" + labels + " 1\n"
	if _, err := parse([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"": "no hetserve_calls_total", "up 1\n": "no hetserve_calls_total", "{": "text format",
		"hetserve_calls_total 3\n":                          `label call is ""`,
		strings.ReplaceAll(good, "decode", "guess"):         `label call is "guess"`,
		strings.ReplaceAll(good, `"1"`, `"-1"`):             `label size is "-1"`,
		strings.ReplaceAll(good, `"1"`, `"many"`):           `label size is "many"`,
		strings.ReplaceAll(good, `"the same",`, `"lunch",`): `label after is "lunch"`,
		strings.ReplaceAll(good, " 2\n", " NaN\n"):          "at least 0",
		strings.ReplaceAll(good, " 1\n", " -1\n"):           "at least 0",
		strings.ReplaceAll(good, " 1\n", " +Inf\n"):         "at least 0",
		strings.ReplaceAll(good, " 1\n", " 0\n"):            "want at least one call that took time",
		strings.Split(good, "\n")[1] + "\n":                 "want at least one call that took time",
		good + good:                                         "twice",
		// the first one of several, every time
		"hetserve_calls_total" + strings.Replace(labels, `"1"`, `"9"`, 1) + " 0\n" +
			"hetserve_calls_total" + strings.Replace(labels, `"1"`, `"5"`, 1) + " 7\n" +
			strings.ReplaceAll(good, " 1\n", " 0\n"): "2 calls",
	} {
		if _, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "served.txt")
	if err := os.WriteFile(path, []byte("up 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Read(path)
	if diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) == 0 {
		t.Errorf("got %v, want it refused with a hint", err)
	}
}
