//go:build !highs

package highs

var (
	embedded         []byte // this build brings no solver along
	licence, notices string
)
