package proc

import (
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

// flannelModules are the names that the module has had.
var flannelModules = []string{"github.com/flannel-io/flannel", "github.com/coreos/flannel"}

// Versions as Flannel and its distributors write them: v0.28.10, v0.26.1-rancher1, v0.25.0+k3s1.
var (
	versionWord = regexp.MustCompile(`^v\d{1,4}\.\d{1,4}\.\d{1,4}[-+.0-9A-Za-z]{0,40}$`)
	versionFlag = regexp.MustCompile(`/version\.Version=["']?(v[-+.0-9A-Za-z]{1,50})`)
)

// flannelVersion looks where builds of Flannel leave their version: the linker flag that sets it, the main module, or,
// where Flannel is a library as in k3s, the module used.
func flannelVersion(info *debug.BuildInfo) string {
	if slices.Contains(flannelModules, info.Main.Path) {
		if v := linkedVersion(info.Settings); v != "" {
			return v
		}
		return release(info.Main.Version)
	}
	for _, d := range info.Deps {
		if !slices.Contains(flannelModules, d.Path) {
			continue
		}
		if d.Replace != nil {
			d = d.Replace
		}
		return release(d.Version)
	}
	return ""
}

func linkedVersion(settings []debug.BuildSetting) string {
	for _, s := range settings {
		if s.Key != "-ldflags" {
			continue
		}
		if m := versionFlag.FindStringSubmatch(s.Value); m != nil {
			return release(m[1])
		}
	}
	return ""
}

// release leaves out what is no version of a release: "(devel)", and the v0.0.0 that stands for "no tag known".
func release(version string) string {
	if !versionWord.MatchString(version) || strings.HasPrefix(version, "v0.0.0-") {
		return ""
	}
	return version
}
