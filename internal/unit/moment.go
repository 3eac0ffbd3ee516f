package unit

import (
	"fmt"
	"strconv"
	"time"
)

// Moment is a time after 1970 in Unix seconds; 0: none. In flags and files it is written as a date, as a date with its
// time, or as Unix seconds.
type Moment int64

// maxMoment is the end of the year 9999, the last that RFC 3339 can write.
const maxMoment = 253402300799

// WantMoment is how a Moment is written, for messages.
const WantMoment = "a date after 1970 such as 2027-01-31 (the end of that day, UTC) or 2027-01-31T12:00:00Z, " +
	"Unix seconds, or 0 for none"

// UnmarshalText reads "2027-01-31", "2027-01-31T12:00:00Z", Unix seconds, or "0" for none. A date by itself is the last
// second of that day in UTC.
func (m *Moment) UnmarshalText(text []byte) error {
	seconds, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		seconds, err = seconds64(string(text))
		if err == nil && seconds == 0 {
			seconds = -1 // 1970 itself is no way to write "none"
		}
	}
	if err != nil || seconds < 0 || seconds > maxMoment {
		return fmt.Errorf("got %q, want %s", text, WantMoment)
	}
	*m = Moment(seconds)
	return nil
}

// seconds64 returns the Unix seconds of a date, or of a date with its time.
func seconds64(text string) (int64, error) {
	if day, err := time.Parse(time.DateOnly, text); err == nil {
		return day.AddDate(0, 0, 1).Unix() - 1, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	return at.Unix(), err
}

// Set reads the value of a flag.
func (m *Moment) Set(text string) error { return m.UnmarshalText([]byte(text)) }

// String returns the moment in UTC, "0" for none: as Set reads it.
func (m *Moment) String() string {
	if *m == 0 {
		return "0"
	}
	return time.Unix(int64(*m), 0).UTC().Format(time.RFC3339)
}

// MomentType is the word for a moment in help texts.
const MomentType = "time"

// Type is that word.
func (m *Moment) Type() string { return MomentType }
