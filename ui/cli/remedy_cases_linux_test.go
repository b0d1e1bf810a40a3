package cli_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flanwatch/ui/cli"
	"flanwatch/watcher/lab/labtest"
)

const (
	hookMasq = `POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`
	plain    = `FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE`
	accept   = `FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT`
)

// remedyCase is a state that nodes were found in, and what may be done about it.
type remedyCase struct {
	name   string
	broken string // script; $1 is nothing yet
	remedy string
	title  string // of the plan, in part
	stays  string // lines of iptables-nft-save and of the namespace that must be there before and after
	kept   string // script whose output must be the same before and after
}

// allRules prints what both backends hold in both families.
const allRules = "for p in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do $p-save 2>/dev/null | grep -v '^#' | sed 's/\\[.*//'; done"

func TestInFieldCasesARepairDoesWhatItMayAndNoMore(t *testing.T) {
	n := node(t)
	state := filepath.Join(t.TempDir(), "state")
	n.Must("ip link add cni0 type bridge")
	n.Must("ip addr add 10.244.1.1/24 dev cni0")
	n.Flanneld("--ip-masq", "--kube-subnet-mgr", "--iptables-resync=1")
	time.Sleep(6500 * time.Millisecond)
	for _, c := range []remedyCase{
		{
			"the chain is emptied", "iptables-nft -t nat -F FLANNEL-POSTRTG",
			"reapply", "e-apply 6 rules", "", "ip addr show cni0",
		},
		{
			"a restart of firewalld removed the chains", "for t in nat filter; do iptables-nft -t $t -F; iptables-nft -t $t -X; done",
			"reapply", "ake iptables-nft v4 nat FLANNEL-POSTRTG with 6 rules", "", "",
		},
		{
			"a reload of firewalld flushed others' rules too: theirs are not made up",
			"iptables-nft -t nat -N CNI-HOSTPORT-DNAT; iptables-nft -t nat -A CNI-HOSTPORT-DNAT -p tcp --dport 443 -j DNAT --to 10.244.1.5:8443; iptables-nft -t nat -F; iptables-nft -F",
			"reapply", "e-apply 6 rules", "", "iptables-nft-save | grep CNI-",
		},
		{
			"no rules after a reboot, and a policy of DROP: the policy stays",
			"for t in nat filter; do iptables-nft -t $t -F; iptables-nft -t $t -X; done; iptables-nft -P FORWARD DROP; iptables-nft -N DOCKER-USER; iptables-nft -A FORWARD -j DOCKER-USER",
			"reapply", "ake iptables-nft v4 nat FLANNEL-POSTRTG", ":FORWARD DROP", "iptables-nft -S FORWARD | grep -v FLANNEL",
		},
		{
			"the jump is missing, the chain complete: the chain is not touched", "iptables-nft -t nat -D " + hookMasq,
			"reapply", "ut 1 rule into iptables-nft v4 nat POSTROUTING", "", "nft -a list chain ip nat FLANNEL-POSTRTG",
		},
		{
			"thousands of copies, and a router's too: the router's stay",
			"iptables-nft -N KUBE-ROUTER-FORWARD; { echo '*filter'; for i in $(seq 500); do echo '-A " + accept + "'; echo '-A KUBE-ROUTER-FORWARD -j RETURN'; done; echo COMMIT; } | iptables-nft-restore --noflush",
			"reapply", "emove 500 rules", "", "iptables-nft -S KUBE-ROUTER-FORWARD",
		},
		{
			"rules of the subnet of before: the bridge keeps its address",
			"iptables-nft-save -t nat | sed 's,10.244.1.0/24,10.244.9.0/24,' | iptables-nft-restore",
			"reapply", "ut 3 rules of", "", "ip addr show cni0",
		},
		{
			"Felix beside Flannel: that is Canal",
			"ip link add cali12345678901 type veth peer name peer0; iptables-nft -t nat -N cali-POSTROUTING; iptables-nft -t nat -I POSTROUTING -j cali-POSTROUTING; iptables-nft -t nat -F FLANNEL-POSTRTG",
			"reapply", "e-apply 6 rules", "", "iptables-nft -t nat -S POSTROUTING",
		},
		{
			"another owner's rules drop: they are his to remove", "iptables-nft -N cali-FORWARD; iptables-nft -I FORWARD -j cali-FORWARD; iptables-nft -A cali-FORWARD -s 10.244.0.0/16 -j DROP; iptables-nft -F FLANNEL-FWD",
			"reapply", "e-apply 2 rules", "", "iptables-nft -S cali-FORWARD; iptables-nft -S FORWARD",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.Shell("nft flush ruleset; ip link del cali12345678901 2>/dev/null || :")
			n.Feed(rules4, "iptables-nft-restore")
			n.Feed(rules6, "ip6tables-nft-restore")
			n.Shell(c.broken)
			c.run(t, n, state)
			left, code := check(t, n)
			for _, chain := range left.Chains {
				if chain.State != "ok" {
					t.Errorf("%+v is %s", chain.Name, chain.State)
				}
			}
			if code == cli.ExitUnreadable {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// run carries the remedy out by the plan that its preview gave.
func (c remedyCase) run(t *testing.T, n *labtest.Namespace, state string) {
	t.Helper()
	keep := func() string { return n.Shell("{ " + c.kept + "\n} || :") }
	if c.kept == "" {
		keep = func() string { return "" }
	}
	before := keep()
	p := preview(t, n, state, cli.ExitFinding, c.remedy)
	if !strings.Contains(p.Title, c.title) {
		t.Errorf("title %q, want %q", p.Title, c.title)
	}
	if got := flanwatch(t, n, state, c.remedy, "--plan", p.ID, "--look-again", "0"); got.code != cli.ExitOK {
		t.Fatalf("%+v", got)
	}
	if after := keep(); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
	if save := n.Shell(allRules); !strings.Contains(save, c.stays) {
		t.Errorf("no %s in\n%s", c.stays, save)
	}
}

func TestInFieldCasesAPurgeTakesFlannelsAndNothingElse(t *testing.T) {
	for _, c := range []remedyCase{
		{
			"a migration to Calico", "iptables-nft -t nat -N cali-POSTROUTING; iptables-nft -t nat -I POSTROUTING -j cali-POSTROUTING; ip link add vxlan.calico type vxlan id 4096 dstport 4789; rm -rf /run/flannel",
			"purge", "Remove 4 chains, 4 jumps of Flannel", "cali-POSTROUTING", "iptables-nft -t nat -S cali-POSTROUTING",
		},
		{
			"rke2-killall left empty chains",
			"for p in iptables-nft ip6tables-nft; do $p-save | grep -v flannel | $p-restore; done", "purge", "Remove 4 chains of Flannel", "", "",
		},
		{
			"a reset cleaned one backend: the other's foreign rules stay",
			"iptables-legacy -A FORWARD -s 192.0.2.0/24 -j ACCEPT; iptables-legacy-restore --noflush < /run/rules4; for p in iptables-nft ip6tables-nft; do $p-save | grep -iv flannel | $p-restore; done; nft add table ip flannel-ipv4",
			"purge", "Remove 2 chains, 2 jumps, 1 native table of Flannel", "192.0.2.0/24", "iptables-legacy -S FORWARD | grep -v FLANNEL",
		},
		{
			"others' residue is theirs", "iptables-nft -N cali-FORWARD; iptables-nft -A cali-FORWARD -j DROP; iptables-nft -N KUBE-ROUTER-FORWARD; iptables-nft -N CILIUM_FORWARD",
			"purge", "Remove 4 chains, 4 jumps of Flannel", "", "for c in cali-FORWARD KUBE-ROUTER-FORWARD CILIUM_FORWARD; do iptables-nft -S $c; done",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node(t)
			state := filepath.Join(t.TempDir(), "state")
			n.Write("/run/rules4", rules4)
			n.Feed(rules4, "iptables-nft-restore")
			n.Feed(rules6, "ip6tables-nft-restore")
			n.Shell(c.broken)
			c.run(t, n, state)
			if left := n.Shell(allRules + "; nft list tables"); strings.Contains(strings.ToLower(left), "flannel") {
				t.Errorf("left:\n%s", left)
			}
			if p := preview(t, n, state, cli.ExitOK, "purge"); p.ID != "" {
				t.Errorf("again: %+v", p)
			}
		})
	}
}

func TestInFieldCasesARemedyIsRefused(t *testing.T) {
	live := []string{"--ip-masq", "--kube-subnet-mgr", "--iptables-resync=1"}
	for _, c := range []struct {
		name   string
		broken string
		argv   []string // flanneld's, none for no flanneld
		young  bool     // it has just started
		remedy string
		guard  string // "" for a plan without what is not to come
		never  string // text that must not be in the plan
		title  string // of the plan, in part
	}{
		{"reapply while flanneld starts", "iptables-nft -t nat -F FLANNEL-POSTRTG", live, true, "reapply", "flannel-starting", "", ""},
		{
			"reapply where flanneld does not masquerade",
			"sed -i s/IPMASQ=true/IPMASQ=false/ /run/flannel/subnet.env; iptables-nft -t nat -F; iptables-nft -t nat -X; ip6tables-nft -t nat -F; ip6tables-nft -t nat -X",
			live[1:], false, "reapply", "ip-masq", "", "",
		},
		{
			"reapply with and without --random-fully, flags unknown", "iptables-nft -t nat -I FLANNEL-POSTRTG 5 " + strings.TrimPrefix(plain, "FLANNEL-POSTRTG "),
			live, false, "reapply", "random-fully-known", "", "",
		},
		{
			"reapply of --random-fully that was switched off on purpose", "iptables-nft-save | sed 's/ --random-fully//' | iptables-nft-restore; ip6tables-nft-save | sed 's/ --random-fully//' | ip6tables-nft-restore",
			append(live[:3:3], "--ip-masq-fully-random-disable"), false, "reapply", "", "random-fully", "Nothing to do",
		},
		{
			"reapply with and without --random-fully, and flanneld was told not to use it: what it was told stays",
			"iptables-nft-save | sed 's/ --random-fully//' | iptables-nft-restore; ip6tables-nft-save | sed 's/ --random-fully//' | ip6tables-nft-restore; " +
				"iptables-nft -t nat -A " + plain + " --random-fully", append(live[:3:3], "--ip-masq-fully-random-disable"), false, "reapply", "", "+ -A", "emove 1 rule",
		},
		{"purge where flanneld runs", "", live, false, "purge", "flannel-live", "", ""},
		{
			"purge of a backend, and nothing tells which is flanneld's", "iptables-legacy-restore < /run/rules4; ip6tables-legacy-restore < /run/rules6",
			live, false, "purge", "flannel-live", "", "",
		},
		{
			"reapply in two backends, and nothing tells which is flanneld's",
			"iptables-legacy-restore < /run/rules4; iptables-nft -t nat -F FLANNEL-POSTRTG; iptables-legacy -t nat -F FLANNEL-POSTRTG", live, false, "reapply", "backend-known", "", "",
		},
		{
			"reapply on a node that Calico owns", "iptables-nft -t nat -F FLANNEL-POSTRTG; ip link add vxlan.calico type vxlan id 4096 dstport 4789; ip link set vxlan.calico up", live, false,
			"reapply", "other-cni", "", "",
		},
		{"reapply where no Flannel runs", "iptables-nft -t nat -F FLANNEL-POSTRTG", nil, false, "reapply", "flannel-running", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := node(t)
			state := filepath.Join(t.TempDir(), "state")
			n.Write("/run/rules4", rules4)
			n.Write("/run/rules6", rules6)
			n.Feed(rules4, "iptables-nft-restore")
			n.Feed(rules6, "ip6tables-nft-restore")
			n.Shell(c.broken)
			if c.argv != nil {
				n.Flanneld(c.argv...)
			}
			if c.argv != nil && !c.young {
				time.Sleep(11 * time.Second)
			}
			before := n.Shell(allRules)
			if c.guard == "" {
				got := flanwatch(t, n, state, c.remedy, "--dry-run")
				if got.code != cli.ExitOK && got.code != cli.ExitFinding || strings.Contains(got.out, c.never) || !strings.Contains(got.out, c.title) {
					t.Errorf("%+v", got)
				}
				return
			}
			p := preview(t, n, state, cli.ExitRefused, c.remedy)
			found := false
			for _, g := range p.Guards {
				found = found || g.Guard == c.guard && !g.OK && g.Why != "" && g.Change != ""
			}
			if !found || p.ID != "" {
				t.Errorf("want a refusal by %s, got %+v", c.guard, p)
			}
			if got := flanwatch(t, n, state, c.remedy, "--plan", "0123456789abcdef"); got.code != cli.ExitRefused {
				t.Errorf("carried out: %+v", got)
			}
			if after := n.Shell(allRules); after != before {
				t.Errorf("it was\n%s\nand is\n%s", before, after)
			}
		})
	}
}
