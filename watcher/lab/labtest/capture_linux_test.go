package labtest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flanwatch/watcher/lab/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

func TestALoadedCaptureHoldsTheSameRules(t *testing.T) {
	for _, name := range []string{"nft", "legacy", "native"} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join("testdata", name)
			n := labtest.New(t)
			n.Load(folder)
			for _, tool := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
				want := rules(read(t, filepath.Join(folder, tool+"-save-c.txt")))
				if got := rules(n.Must(tool + "-save -c")); got != want {
					t.Errorf("%s has\n%swant\n%s", tool, got, want)
				}
			}
			want := native(read(t, filepath.Join(folder, "nft-na-list-ruleset.txt")))
			if got := native(n.Must("nft -nn list ruleset")); got != want {
				t.Errorf("native tables are\n%swant\n%s", got, want)
			}
			if got := n.Must("cat /run/flannel/subnet.env"); got != read(t, filepath.Join(folder, "subnet.env")) {
				t.Errorf("subnet.env is %q", got)
			}
			if got := n.Must("ip -d -br link show flannel.1"); !strings.Contains(got, "flannel.1") {
				t.Errorf("flannel.1: %s", got)
			}
			if got := n.Must("ip addr show cni0"); !strings.Contains(got, "10.244.1.1/24") {
				t.Errorf("cni0: %s", got)
			}
		})
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rules keeps the rules and own chains of iptables-save, table by table, without counters: ip6tables-nft-restore takes none.
func rules(save string) string {
	var lines []string
	table := ""
	for line := range strings.Lines(save) {
		switch {
		case strings.HasPrefix(line, "*"):
			table = strings.TrimSpace(line)
		case strings.Contains(line, "-A ") || strings.Contains(line, " - ["):
			lines = append(lines, table+" "+counters.ReplaceAllString(line, ""))
		}
	}
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(a[:4], b[:4]) })
	return strings.Join(lines, "")
}

var counters = regexp.MustCompile(`^\[[0-9:]+\] `)

var native4And6 = regexp.MustCompile(`(?ms)^table ip6? flannel-ipv[46] \{.*?^\}$`)

// native keeps Flannel's tables, without the handles.
func native(listing string) string {
	tables := strings.Join(native4And6.FindAllString(listing, -1), "\n") + "\n"
	return regexp.MustCompile(` # handle [0-9]+`).ReplaceAllString(tables, "")
}

func TestAStandInIsCalledFlanneldAndLivesInTheNamespace(t *testing.T) {
	n := labtest.New(t)
	pid := n.Flanneld("--ip-masq")
	comm := read(t, fmt.Sprintf("/proc/%d/comm", pid))
	cmdline := read(t, fmt.Sprintf("/proc/%d/cmdline", pid))
	if comm != "flanneld\n" || cmdline != "/opt/bin/flanneld\x00--ip-masq\x00" {
		t.Errorf("it is %q with command line %q", comm, cmdline)
	}
	its, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if want := strings.TrimSpace(n.Must("readlink /proc/self/ns/net")); its != want {
		t.Errorf("it lives in %s, want %s", its, want)
	}
}
