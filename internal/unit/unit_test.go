package unit

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	sizes := map[string]Bytes{"4GiB": 4 << 30, "4 GB": 4e9, "1.5MiB": 3 << 19, "1.2GiB": 1288490188, "0.0001kB": 0, "4096": 4096, "0": 0, " 2 kB ": 2000, "2KB": 2000, "1B": 1, "1e3B": 1000, "2E": -1,
		"": -1, "GiB": -1, "-1": -1, "1.5": -1, "4 GiBs": -1, "9e18": 9e18, "1e19": -1, "nan": -1, "inf": -1, "1 gib": -1, strings.Repeat("1", 100): -1}
	for s, want := range sizes {
		if got, err := ParseBytes(s); (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	times := map[string]Seconds{"60s": 60, "1.5 ms": 1.5e-3, "250us": 250e-6, "3µs": 3e-6, "10m": 600, "1h30m": 5400, "1h 30m 5s": 5405, "0": 0, "2e-3s": 2e-3, "7ns": 7e-9,
		"": -1, "60": -1, "5x": -1, "m": -1, "1m1h": -1, "1s1s": -1, "-1s": -1, "1h-5m": -1, "nans": -1}
	for s, want := range times {
		got, err := ParseSeconds(s)
		if (err != nil) != (want < 0) || err == nil && math.Abs(float64(got-want)) > 1e-15 {
			t.Errorf("ParseSeconds(%q) = %g, %v, want %g", s, float64(got), err, float64(want))
		}
	}
}

func TestPrint(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{Bytes(4 << 30).String(), "4 GiB"}, {Bytes(1500).String(), "1.46 KiB"}, {Bytes(0).String(), "0 B"}, {Bytes(1023).String(), "1023 B"}, {Bytes(-2048).String(), "-2 KiB"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

// TestTextIsExact writes sizes and reads the same back.
func TestTextIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bytes(rapid.Int64Range(0, 1<<53).Draw(t, "bytes"))
		text, _ := b.MarshalText()
		var b2 Bytes
		if err := b2.UnmarshalText(text); err != nil || b2 != b {
			t.Fatalf("%d -> %s -> %d, %v", int64(b), text, int64(b2), err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"4GiB", "1h30m", "1e3TB", "-0", "1.5 ms", "3µs"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if b, err := ParseBytes(s); err == nil && b < 0 {
			t.Errorf("%q is %d bytes", s, b)
		}
		if x, err := ParseSeconds(s); err == nil && !(x >= 0) {
			t.Errorf("%q is %g seconds", s, float64(x))
		}
	})
}
