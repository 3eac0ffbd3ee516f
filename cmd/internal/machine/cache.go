package machine

import (
	"os"
	"path/filepath"

	"github.com/hetc/hetc/internal/diag"
)

// EnvCache names the cache's directory.
const EnvCache = "HETC_CACHE"

// CacheDir returns where the cache is: the directory of a flag, that of the variable, or the user's.
func CacheDir(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if dir := os.Getenv(EnvCache); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", diag.New(diag.ClassIO, "find the cache: %w", err).
			WithHint("name a directory: --cache DIR, or %s", EnvCache)
	}
	return filepath.Join(dir, "hetc"), nil
}
