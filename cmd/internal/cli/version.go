package cli

import "runtime/debug"

// Version is the version of hetc and hetrun.
const Version = "0.1.0"

// Revision returns the first digits of the commit that this program was built from, and whether the tree differed from
// it. It is "" where the go command did not note the commit.
func Revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}

	const digits = 12
	revision, modified := "", ""
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision" && len(setting.Value) >= digits:
			revision = setting.Value[:digits]
		case setting.Key == "vcs.modified" && setting.Value == "true":
			modified = " with changes"
		}
	}
	if revision == "" {
		return ""
	}
	return revision + modified
}
