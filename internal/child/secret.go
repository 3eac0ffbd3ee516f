package child

import (
	"os"
	"sync"
)

// EnvSigningKey is the variable that a signing key's PEM text may come in. It is the one secret of the environment that
// is this program's own.
const EnvSigningKey = "HETC_SIGNING_KEY"

// taken is the signing key between TakeSigningKey and SigningKey.
var taken struct {
	sync.Mutex
	text string
	have bool
}

// TakeSigningKey takes the signing key out of the environment, whether the command will need it or not: a process
// started later does not inherit it, and a library that is opened here does not find it. Every command begins with it.
func TakeSigningKey() {
	text, have := os.LookupEnv(EnvSigningKey)
	if !have {
		return
	}
	taken.Lock()
	defer taken.Unlock()
	taken.text, taken.have = text, true
	_ = os.Unsetenv(EnvSigningKey) // fails for malformed names only
	wipe(EnvSigningKey)
}

// HasSigningKey reports whether the environment had a signing key that was not asked for yet, and whether there is a
// text in it: some CI systems set a secret that a job may not see to nothing.
func HasSigningKey() (set, filled bool) {
	TakeSigningKey()
	taken.Lock()
	defer taken.Unlock()
	return taken.have, taken.text != ""
}

// SigningKey hands out the signing key of the environment, once.
func SigningKey() (text string, have bool) {
	TakeSigningKey()
	taken.Lock()
	defer taken.Unlock()
	text, have = taken.text, taken.have
	taken.text, taken.have = "", false
	return text, have
}
