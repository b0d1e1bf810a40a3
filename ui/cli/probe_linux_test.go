package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"flanwatch/ui/cli"
	"flanwatch/watcher/lab/labtest"
)

// newPod joins a pod to a node: what it sends to the node is answered.
func newPod(t *testing.T, n *labtest.Namespace) (pid string) {
	t.Helper()
	labtest.RequireTools(t, "ip")
	pod := labtest.New(t)
	n.Must("ip link add cni0 type veth peer name eth0 netns " + pod.Path())
	n.Must("ip addr add 10.244.1.1/24 dev cni0")
	n.Must("ip link set cni0 up")
	pod.Must("ip addr add 10.244.1.5/24 dev eth0")
	pod.Must("ip link set eth0 up")
	pod.Must("ip route add default via 10.244.1.1")
	return fmt.Sprint(pod.StandIn("/pause"))
}

func TestCheckTriesOneConnectionFromAPod(t *testing.T) {
	n := node(t)
	n.Feed(rules4, "iptables-nft-restore")
	pid := newPod(t, n)
	run := func(form, to, from string) (string, int) {
		var out, errs bytes.Buffer
		args := []string{"check", "-o", form, "--netns", n.Path(), "--root", n.Root(), "--probe", to, "--probe-from", from}
		code := cli.Main(t.Context(), args, cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
		return out.String() + errs.String(), code
	}
	for _, c := range []struct{ to, from, want, finding, unreadable string }{
		{"icmp://10.244.1.1", pid, "connected in", "", ""},
		{"tcp://192.0.2.80:80", "10.244.1.5", "failed", "probe-failed", ""},
		{"icmp://10.244.1.1", "10.244.1.77", "no process has that address", "", "probe"},
	} {
		text, _ := run("text", c.to, c.from)
		if !strings.Contains(text, c.want) {
			t.Errorf("%s from %s lacks %q:\n%s", c.to, c.from, c.want, text)
		}
		doc, code := run("json", c.to, c.from)
		r := decode(t, []byte(doc))
		var probed struct {
			Probe *struct {
				OK        bool
				ConnectMS *float64
			}
		}
		if err := json.Unmarshal([]byte(doc), &probed); err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range r.Findings {
			found = found || f.ID == "probe-failed"
		}
		if found != (c.finding != "") || found && code != 1 {
			t.Errorf("%s from %s: exit code %d, findings %+v", c.to, c.from, code, r.Findings)
		}
		switch p := probed.Probe; {
		case c.unreadable != "" && (p != nil || len(r.Unreadable) == 0):
			t.Errorf("%s from %s: %+v, unreadable %+v", c.to, c.from, p, r.Unreadable)
		case c.unreadable == "" && (p == nil || p.OK == found || p.OK != (p.ConnectMS != nil)):
			t.Errorf("%s from %s: %+v", c.to, c.from, p)
		}
	}
}

func TestAProbeNeedsATargetAndAPod(t *testing.T) {
	for _, args := range [][]string{
		{"check", "--probe", "tcp://192.0.2.80:80"},
		{"check", "--probe-from", "1"},
		{"watch", "--probe", "name:80", "--probe-from", "1"},
		{"record", "--probe", "tcp://192.0.2.80:80"},
		{"--probe", "http://192.0.2.80", "--probe-from", "1"},
	} {
		var out, errs bytes.Buffer
		if code := cli.Main(t.Context(), args, cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs}); code != cli.ExitUsage {
			t.Errorf("%v: exit code %d: %s", args, code, errs.String())
		}
	}
}
