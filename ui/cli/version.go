package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version tells the module's version, the commit and the Go version, from what the linker knows.
func version() string {
	module, commit, compiler := versions()
	return fmt.Sprintf("%s, commit %s, %s", module, commit, compiler)
}

func versions() (module, commit, compiler string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown", "unknown", runtime.Version()
	}
	commit = "unknown"
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			commit = s.Value[:min(12, len(s.Value))]
		}
	}
	return info.Main.Version, commit, info.GoVersion
}
