package ortapi

import "github.com/hetc/hetc/internal/mem"

// outside is zeroed memory outside the Go heap, which C may be given pointers into.
func outside(bytes int) ([]byte, func(), error) {
	r, err := mem.Alloc(bytes, 64)
	if err != nil {
		return nil, nil, err
	}
	return r.Bytes(), func() { r.Close() }, nil
}
