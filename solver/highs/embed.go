//go:build highs

package highs

import _ "embed"

// embedded is what make deps put there; a build with the tag highs fails without it.
//
//go:embed wasm/highs.wasm
var embedded []byte

//go:embed wasm/LICENSE
var licence string

//go:embed notices.txt
var notices string
