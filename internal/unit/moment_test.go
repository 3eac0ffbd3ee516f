package unit

import (
	"strings"
	"testing"
)

func TestMoment(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "1000000000": 1e9, "2001-09-09T01:46:40Z": 1e9, "2001-09-09T03:46:40+02:00": 1e9,
		"2001-09-09": 1e9 - 1*3600 - 46*60 - 40 + 24*3600 - 1, "9999-12-31": 253402300799,
	} {
		var got Moment
		if err := got.Set(text); err != nil || int64(got) != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
		var again Moment
		if err := again.Set(got.String()); err != nil || again != got {
			t.Errorf("%q is written as %q, which is %d, %v", text, got.String(), again, err)
		}
	}
	for _, text := range []string{"", "-1", "1e9", "never", "2027-02-30", "2027-1-31", "2027-01-31T12:00:00", "31.01.2027",
		"1970-01-01T00:00:00Z", "1969-12-31", "0001-01-01", "99999999999999999999", "253402300800"} {
		got := Moment(7)
		if err := got.Set(text); err == nil || !strings.Contains(err.Error(), "2027-01-31") || got != 7 {
			t.Errorf("%q: got %d, %v", text, got, err)
		}
	}
}
