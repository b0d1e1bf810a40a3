package cli

import (
	"fmt"
	"runtime/debug"
)

// version tells the module's version, the commit and the Go version, from what the linker knows.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	commit := "unknown"
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			commit = s.Value[:min(12, len(s.Value))]
		}
	}
	return fmt.Sprintf("%s, commit %s, %s", info.Main.Version, commit, info.GoVersion)
}
