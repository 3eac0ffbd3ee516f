//go:build !linux

package bundle

import "os"

// stampOf reads the stamp of an open file.
func stampOf(f *os.File) (stamp, error) {
	st, err := f.Stat()
	if err != nil {
		return stamp{}, err
	}
	return stamp{st.Size(), st.ModTime().UnixNano()}, nil
}
