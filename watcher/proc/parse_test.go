package proc

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/watcher/diagnose"
)

const statTail = " 1 7 7 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 9 0 4711 1000 50 18446744073709551615 1 1 0 0 0 0 0 0 0"

func TestStat(t *testing.T) {
	for name, c := range map[string]struct {
		line string
		want stat
		ok   bool
	}{
		"an ordinary process": {
			"42 (flanneld) S" + statTail, stat{"flanneld", 'S', 1, 47110 * time.Millisecond}, true,
		},
		"a name that looks like the rest of the line": {
			"42 (a) R 9 (b) S" + statTail, stat{"a) R 9 (b", 'S', 1, 47110 * time.Millisecond}, true,
		},
		"a name with a line break":        {"42 (a\nb) Z" + statTail, stat{"a\nb", 'Z', 1, 47110 * time.Millisecond}, true},
		"an empty name":                   {"42 () S" + statTail, stat{"", 'S', 1, 47110 * time.Millisecond}, true},
		"a line cut short":                {"42 (flanneld) S 1 7 7", stat{}, false},
		"no parentheses":                  {"42 flanneld S" + statTail, stat{}, false},
		"parentheses the wrong way round": {"42 )flanneld( S" + statTail, stat{}, false},
		"a start that is no number":       {"42 (a) S" + strings.Replace(statTail, "4711", "x", 1), stat{}, false},
		"a start beyond every clock": {
			"42 (a) S" + strings.Replace(statTail, "4711", "18446744073709551615", 1), stat{}, false,
		},
		"nothing": {"", stat{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat([]byte(c.line))
			if got != c.want || (err == nil) != c.ok {
				t.Errorf("parseStat = %+v, %v; want %+v, ok %v", got, err, c.want, c.ok)
			}
		})
	}
}

func TestOnlyEndedProcessesAreDead(t *testing.T) {
	for _, state := range "RSDTtIP" {
		if (stat{state: byte(state)}).dead() {
			t.Errorf("state %c counts as dead", state)
		}
	}
	if !(stat{state: 'Z'}).dead() || !(stat{state: 'X'}).dead() {
		t.Error("a zombie counts as running")
	}
}

const id64 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestCgroup(t *testing.T) {
	uid := "0f6d7a3c-1111-2222-3333-abcdefabcdef"
	pod := diagnose.Container{ID: id64, Pod: uid}
	for name, c := range map[string]struct {
		text string
		want diagnose.Container
	}{
		"containerd with the systemd driver": {
			"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f6d7a3c_1111_2222_3333_abcdefabcdef.slice/cri-containerd-" + id64 + ".scope\n", pod,
		},
		"containerd with cgroupfs": {"0::/kubepods/burstable/pod" + uid + "/" + id64 + "\n", pod},
		"a guaranteed pod": {
			"0::/kubepods.slice/kubepods-pod0f6d7a3c_1111_2222_3333_abcdefabcdef.slice/crio-" + id64 + ".scope/container\n", pod,
		},
		"a pod below a nested kubelet": {
			"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod0f6d7a3c_1111_2222_3333_abcdefabcdef.slice/cri-containerd-" + id64 + ".scope\n", pod,
		},
		"a static pod, whose UID is a hash": {
			"0::/kubepods/pod0123456789abcdef0123456789abcdef/" + id64,
			diagnose.Container{ID: id64, Pod: "0123456789abcdef0123456789abcdef"},
		},
		"version 1, where every line says the same": {"12:cpuset:/kubepods/besteffort/pod" + uid + "/" + id64 + "\n11:pids:/\n", pod},
		"docker without Kubernetes":                 {"0::/system.slice/docker-" + id64 + ".scope\n", diagnose.Container{ID: id64}},
		"a service of the host":                     {"0::/system.slice/k3s.service\n", diagnose.Container{}},
		"seen from inside a cgroup namespace":       {"0::/\n", diagnose.Container{}},
		"a pod without a container":                 {"0::/kubepods/pod" + uid + "\n", diagnose.Container{Pod: uid}},
		"an id of the wrong length":                 {"0::/docker-" + id64 + "0.scope\n", diagnose.Container{}},
		"a user's own group named pod":              {"0::/user.slice/podman-pod.slice\n", diagnose.Container{}},
		"something else":                            {"hello\n\n:::\n", diagnose.Container{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := parseCgroup([]byte(c.text)); got != c.want {
				t.Errorf("parseCgroup = %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestEnvironKeepsNoSecret(t *testing.T) {
	env := parseEnviron([]byte("FLANNELD_IP_MASQ=true\x00FLANNELD_ETCD_PASSWORD=hush\x00POD_NAME=a=b\x00TOKEN=x\x00junk\x00\x00"))
	if want := map[string]string{"FLANNELD_IP_MASQ": "true", "POD_NAME": "a=b"}; !maps.Equal(env, want) {
		t.Errorf("parseEnviron = %v, want %v", env, want)
	}
	if parseEnviron(nil) == nil {
		t.Error("an empty environment looks like an unreadable one")
	}
}

func TestCommandLinesEndAtNulBytes(t *testing.T) {
	for text, want := range map[string][]string{
		"":                            nil,
		"\x00\x00":                    nil,
		"flanneld\x00--ip-masq\x00":   {"flanneld", "--ip-masq"},
		"flanneld\x00\x00x\x00":       {"flanneld", "", "x"},
		"a title written over it all": {"a title written over it all"},
	} {
		if got := parseStrings([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("parseStrings(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestNSpid(t *testing.T) {
	got, err := parseNSpid([]byte("Name:\tx\nNSpid:\t4711\t12\t1\nThreads:\t1\n"))
	if err != nil || !slices.Equal(got, []int{4711, 12, 1}) {
		t.Errorf("parseNSpid = %v, %v", got, err)
	}
	for _, text := range []string{"", "Name: x\n", "NSpid:\tx\n"} {
		if _, err := parseNSpid([]byte(text)); err == nil {
			t.Errorf("parseNSpid(%q) gives no error", text)
		}
	}
}

func TestHidepid(t *testing.T) {
	const plain = "22 27 0:21 / /proc rw,nosuid shared:5 - proc proc rw\n"
	const hiding = "40 27 0:33 / /proc rw - proc proc rw,gid=4,hidepid=invisible\n"
	for name, c := range map[string]struct{ text, dir, want string }{
		"no option":                     {plain, "/proc", ""},
		"the option":                    {hiding, "/proc", "invisible"},
		"the last mount counts":         {hiding + plain, "/proc", ""},
		"an option of another place":    {hiding, "/host/proc", ""},
		"switched off":                  {strings.Replace(hiding, "invisible", "off", 1), "/proc", ""},
		"a number, as old kernels say":  {strings.Replace(hiding, "invisible", "2", 1), "/proc", "2"},
		"another file system":           {strings.Replace(hiding, "- proc", "- tmpfs", 1), "/proc", ""},
		"something else":                {"x - y\n\n - \n", "/proc", ""},
		"optional fields of any number": {strings.Replace(hiding, "rw -", "rw shared:1 master:2 -", 1), "/proc", "invisible"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := parseHidepid([]byte(c.text), c.dir); got != c.want {
				t.Errorf("parseHidepid = %q, want %q", got, c.want)
			}
		})
	}
}

func TestKinds(t *testing.T) {
	for name, c := range map[string]struct {
		comm    string
		cmdline []string
		kind    diagnose.ProcessKind
		counts  bool
	}{
		"flanneld":                        {"flanneld", []string{"/opt/bin/flanneld", "--ip-masq"}, diagnose.ProcFlanneld, true},
		"a k3s server":                    {"k3s-server", []string{"/usr/local/bin/k3s server"}, diagnose.ProcK3s, true},
		"k3s server before it has forked": {"k3s", []string{"k3s", "server"}, diagnose.ProcK3s, true},
		"k3s used as kubectl":             {"k3s", []string{"k3s", "kubectl", "get", "server"}, "", false},
		"k3s without arguments":           {"k3s", []string{"k3s"}, "", false},
		"k3s without Flannel":             {"k3s-server", []string{"k3s", "server", "--flannel-backend=none"}, diagnose.ProcK3s, false},
		"k3s without Flannel, two words": {
			"k3s-server", []string{"k3s", "server", "--flannel-backend", "none"}, diagnose.ProcK3s, false,
		},
		"k3s with another backend": {
			"k3s-server", []string{"k3s", "server", "--flannel-backend", "host-gw"}, diagnose.ProcK3s, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if kind, counts := kindOf(c.comm, c.cmdline); counts != c.counts || counts && kind != c.kind {
				t.Errorf("kindOf = %q, %v; want %q, %v", kind, counts, c.kind, c.counts)
			}
		})
	}
}

func TestPackageVersions(t *testing.T) {
	apk := "P:ip6tables\nV:1.8.10-r0\n\nC:Q1\nP:iptables\nV:1.8.11-r1\nA:x86_64\n\nP:zlib\nV:1.3\n"
	dpkg := "Package: iptables-dev\nVersion: 1\n\nPackage: iptables\nStatus: install ok installed\nVersion: 1.8.9-2"
	for name, got := range map[string]string{
		"apk":  packageVersion([]byte(apk), "P", "V", "iptables"),
		"dpkg": packageVersion([]byte(dpkg), "Package", "Version", "iptables"),
		"none": packageVersion([]byte(apk), "P", "V", "nftables"),
	} {
		if want := map[string]string{"apk": "1.8.11-r1", "dpkg": "1.8.9-2", "none": ""}[name]; got != want {
			t.Errorf("%s: packageVersion = %q, want %q", name, got, want)
		}
	}
}

func TestToolVersion(t *testing.T) {
	for output, want := range map[string]string{
		"iptables v1.8.9 (nf_tables)\n": "1.8.9 (nf_tables)",
		"iptables v1.4.21\n":            "1.4.21",
		"":                              "",
		"iptables: not found":           "",
		"iptables v" + id64:             "",
	} {
		if got := parseToolVersion(output); got != want {
			t.Errorf("parseToolVersion(%q) = %q, want %q", output, got, want)
		}
	}
}

func TestInodes(t *testing.T) {
	const head = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n"
	got, err := parseInodes([]byte(head + "0 0 1 0 0 0 0 2 0 4711\n0 15 2 0 0 0 0 2 0 4712\n\n"))
	if err != nil || len(got) != 2 || !got[4711] || !got[4712] || got[2] {
		t.Errorf("parseInodes = %v, %v", got, err)
	}
	for _, text := range []string{"\n", "sk Eth Pid\n", head + "0 0 x\n"} {
		if got, err := parseInodes([]byte(text)); err == nil {
			t.Errorf("parseInodes(%q) = %v", text, got)
		}
	}
}

func FuzzParsers(f *testing.F) {
	f.Add([]byte("42 (flanneld) S" + statTail))
	f.Add([]byte("0::/kubepods/burstable/pod0f6d7a3c-1111-2222-3333-abcdefabcdef/" + id64 + "\n"))
	f.Add([]byte("40 27 0:33 / /proc rw - proc proc rw,hidepid=2\n"))
	f.Add([]byte("NSpid:\t4711\t12\n"))
	f.Add([]byte("PATH=/bin\x00FLANNELD_IP_MASQ=true\x00"))
	f.Add([]byte("0::/podpod-podpod/x\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseStat(b); err == nil && (s.start < 0 || s.ppid < 0) {
			t.Errorf("parseStat(%q) = %+v", b, s)
		}
		if c := parseCgroup(b); c.ID != "" && !isContainerID(c.ID) || strings.ContainsAny(c.Pod, "/_ \n") {
			t.Errorf("parseCgroup(%q) = %+v", b, c)
		}
		if got := parseStrings(b); len(got) > bytes.Count(b, []byte{0})+1 {
			t.Errorf("parseStrings(%q) = %q", b, got)
		}
		for name := range parseEnviron(b) {
			if !slices.Contains(kept, name) {
				t.Errorf("parseEnviron(%q) keeps %q", b, name)
			}
		}
		_, _ = parseNSpid(b)
		_ = parseHidepid(b, "/proc")
		_ = packageVersion(b, "P", "V", "iptables")
		_, _ = parseInodes(b)
	})
}
