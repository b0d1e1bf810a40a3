package proc

import (
	"runtime/debug"
	"testing"
)

func TestFlannelVersion(t *testing.T) {
	flags := func(s string) []debug.BuildSetting { return []debug.BuildSetting{{Key: "-ldflags", Value: s}} }
	main := func(version string) debug.Module {
		return debug.Module{Path: "github.com/flannel-io/flannel", Version: version}
	}
	dep := func(version string, replace *debug.Module) []*debug.Module {
		return []*debug.Module{{Path: "github.com/flannel-io/flannel", Version: version, Replace: replace}}
	}
	for name, c := range map[string]struct {
		info debug.BuildInfo
		want string
	}{
		"set by the linker": {
			debug.BuildInfo{Main: main("(devel)"), Settings: flags("-s -w -X github.com/flannel-io/flannel/pkg/version.Version=v0.28.10 -extldflags \"-static\"")}, "v0.28.10",
		},
		"set by the linker, quoted": {
			debug.BuildInfo{Main: main("(devel)"), Settings: flags("-X 'github.com/flannel-io/flannel/pkg/version.Version=v0.26.1-rancher1'")}, "v0.26.1-rancher1",
		},
		"an old module path": {
			debug.BuildInfo{Main: debug.Module{Path: "github.com/coreos/flannel"}, Settings: flags("-X github.com/coreos/flannel/version.Version=v0.11.0")}, "v0.11.0",
		},
		"the module's own version": {debug.BuildInfo{Main: main("v0.28.9")}, "v0.28.9"},
		"built from a checkout":    {debug.BuildInfo{Main: main("(devel)")}, ""},
		"no tag known":             {debug.BuildInfo{Main: main("v0.0.0-20260101000000-abcdef123456")}, ""},
		"a library of k3s": {
			debug.BuildInfo{Main: debug.Module{Path: "github.com/k3s-io/k3s", Version: "v1.33.1+k3s1"}, Deps: dep("v0.26.7", nil)}, "v0.26.7",
		},
		"a library that is replaced": {
			debug.BuildInfo{Deps: dep("v0.26.7", &debug.Module{Path: "github.com/k3s-io/flannel", Version: "v0.26.8-k3s1"})}, "v0.26.8-k3s1",
		},
		"a replacement without version": {debug.BuildInfo{Deps: dep("v0.26.7", &debug.Module{Path: "./flannel"})}, ""},
		"another program": {
			debug.BuildInfo{Main: debug.Module{Path: "flanwatch", Version: "v1.2.3"}, Settings: flags("-X flanwatch/version.Version=v9.9.9")}, "",
		},
		"escape bytes for a version": {debug.BuildInfo{Main: main("v0.28.9\x1b[2J")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := flannelVersion(&c.info); got != c.want {
				t.Errorf("flannelVersion = %q, want %q", got, c.want)
			}
		})
	}
}
