package host

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/lab/labtest"
)

const (
	envText  = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	confText = "{\n  \"Network\": \"10.244.0.0/16\",\n  \"TrafficManager\": \"nftables\",\n  \"Backend\": {\"Type\": \"vxlan\"}\n}\n"
)

// look reads the node once on a namespace's own thread.
func look(t *testing.T, n *labtest.Namespace, o Options, procs, near []diagnose.Process, rules ...*flannel.Ruleset) flannel.Node {
	t.Helper()
	for i := range procs {
		if procs[i].Kind == "" {
			procs[i].Kind = diagnose.ProcFlanneld
		}
	}
	var node flannel.Node
	if err := n.Do(func() error {
		r, err := Open(o)
		if err != nil {
			return err
		}
		defer r.Close()
		node = r.Node(flannel.Know(procs, "/proc", flannel.Time{}), near, rules, flannel.Time{Wall: time.Now()})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return node
}

func TestNodeOfKubeFlannel(t *testing.T) {
	n := labtest.New(t)
	n.Shell("mkdir /run/flannel; cat > /run/flannel/subnet.env <<'X'\n" + envText + "X\n")
	p, _ := start(t, n, "flanneld", "--ip-masq", "--kube-subnet-mgr")
	node := look(t, n, Options{Files: openRoot(t, n.Root())}, []diagnose.Process{p}, nil)

	if got := prefixesRead(node.Networks); got != "[10.244.0.0/16] from /run/flannel/subnet.env" {
		t.Errorf("networks %s", got)
	}
	if got := prefixesRead(node.Subnets); got != "[10.244.1.0/24] from /run/flannel/subnet.env" {
		t.Errorf("subnets %s", got)
	}
	if age := time.Since(node.Written); age < 0 || age > time.Minute {
		t.Errorf("written %v ago", age)
	}
	if !node.IPMasq.Value || !strings.HasPrefix(node.IPMasq.Source, "flags of flanneld (pid ") || !node.ForwardRules.Value {
		t.Errorf("ip-masq %+v, forward rules %+v", node.IPMasq, node.ForwardRules)
	}
	if len(node.Others) != 0 || len(node.Problems) != 0 || node.MTU.Value != 1450 || node.Distribution.Value != "kube-flannel" {
		t.Errorf("others %v, problems %v, MTU %v, distribution %+v", node.Others, node.Problems, node.MTU, node.Distribution)
	}
	if host, _ := os.Hostname(); node.Name != host {
		t.Errorf("name %q", node.Name)
	}
}

// TestNodeOfCanalBeforeAndInAnOutage follows an RKE2 node: the host has no subnet.env, the container has one, and then the
// container is gone.
func TestNodeOfCanalBeforeAndInAnOutage(t *testing.T) {
	n := labtest.New(t)
	root, state := t.TempDir(), t.TempDir()
	write(t, root, "var/lib/kubelet/pods/0f6d/volumes/kubernetes.io~configmap/flannel-cfg/..2026/net-conf.json", confText)
	volume := filepath.Join(root, "var/lib/kubelet/pods/0f6d/volumes/kubernetes.io~configmap/flannel-cfg")
	for link, target := range map[string]string{"..data": "..2026", "net-conf.json": "..data/net-conf.json"} {
		if err := os.Symlink(target, filepath.Join(volume, link)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, root, "etc/cni/net.d/10-canal.conflist", "{}")
	if err := os.MkdirAll(filepath.Join(root, rke2Data), 0o755); err != nil {
		t.Fatal(err)
	}
	n.Shell("mkdir /run/flannel; cat > /run/flannel/subnet.env <<'X'\n" + envText + "X\n")
	p, stop := start(t, n, "flanneld", "--ip-masq", "--kube-subnet-mgr", "--iptables-forward-rules=false", "--ip-blackhole-route")
	options := Options{Files: openRoot(t, root), State: state}

	node := look(t, n, options, []diagnose.Process{p}, nil)
	want := fmt.Sprintf("[10.244.0.0/16] from /proc/%d/root/run/flannel/subnet.env", p.PID)
	if got := prefixesRead(node.Networks); got != want {
		t.Errorf("networks %s, want %s", got, want)
	}
	if node.ForwardRules.State != flannel.Known || node.ForwardRules.Value || node.Distribution.Value != "rke2-canal" {
		t.Errorf("forward rules %+v, distribution %+v", node.ForwardRules, node.Distribution)
	}
	if err := Save(state, node, time.Now()); err != nil {
		t.Fatal(err)
	}

	stop()
	node = look(t, n, options, nil, nil)
	if got := prefixesRead(node.Networks); got != "[10.244.0.0/16] from /var/lib/kubelet/pods/0f6d/volumes/kubernetes.io~configmap/flannel-cfg/net-conf.json" {
		t.Errorf("networks in the outage: %s", got)
	}
	if got := prefixesRead(node.Subnets); !strings.HasPrefix(got, "[10.244.1.0/24] from remembered in ") {
		t.Errorf("subnets in the outage: %s", got)
	}
	if node.Written.IsZero() || node.ForwardRules.State != flannel.Known || node.ForwardRules.Value || !node.IPMasq.Value {
		t.Errorf("written %v, forward rules %+v, ip-masq %+v", node.Written, node.ForwardRules, node.IPMasq)
	}
	if node.Distribution.Value != "rke2-canal" {
		t.Errorf("distribution %+v", node.Distribution)
	}
	if len(node.Ignored) != 1 || node.Ignored[0].What != "TrafficManager" || node.Ignored[0].Line != 3 {
		t.Errorf("ignored keys %+v", node.Ignored)
	}

	options.State = ""
	n.Shell("ip link add flannel.1 type vxlan id 1 dstport 8472; ip link set flannel.1 up; ip addr add 10.244.1.0/32 dev flannel.1; " +
		"ip route add blackhole 10.244.1.0/24; ip route add blackhole 10.9.0.0/26")
	node = look(t, n, options, nil, nil)
	if got := prefixesRead(node.Subnets); got != "[10.244.1.0/24] from links and routes: blackhole route at the address of flannel.1" {
		t.Errorf("subnets without anything remembered: %s", got)
	}
}

func TestTheSearchThroughPodsIsNotRepeatedAtOnce(t *testing.T) {
	root := t.TempDir()
	files := openRoot(t, root)
	var v volumes
	at := func(s time.Duration) flannel.Time { return flannel.Time{Boot: s*time.Second + 1} }
	write(t, root, "kubelet/pods/1/volumes/kubernetes.io~configmap/cfg/net-conf.json", "{}")
	if got := v.find(files, "/kubelet", at(0)); len(got) != 1 {
		t.Errorf("first search: %v", got)
	}
	write(t, root, "kubelet/pods/2/volumes/kubernetes.io~configmap/cfg/net-conf.json", "{}")
	if got := v.find(files, "/kubelet", at(29)); len(got) != 1 {
		t.Errorf("searched again too early: %v", got)
	}
	if got := v.find(files, "/kubelet", at(30)); len(got) != 2 {
		t.Errorf("not searched again: %v", got)
	}
}

func TestTheNewerSubnetEnvCounts(t *testing.T) {
	n := labtest.New(t)
	root := t.TempDir()
	write(t, root, SubnetEnv, strings.ReplaceAll(envText, "10.244.", "10.42."))
	old := time.Now().Add(-24 * time.Hour)
	if err := os.Chtimes(filepath.Join(root, SubnetEnv), old, old); err != nil {
		t.Fatal(err)
	}
	n.Shell("mkdir /run/flannel; cat > /run/flannel/subnet.env <<'X'\n" + envText + "X\n")
	p, _ := start(t, n, "flanneld", "--ip-masq")
	node := look(t, n, Options{Files: openRoot(t, root)}, []diagnose.Process{p}, nil)
	if got := prefixesRead(node.Networks); !strings.HasPrefix(got, "[10.244.0.0/16] from /proc/") {
		t.Errorf("networks %s", got)
	}
	if len(node.Others) != 1 || node.Others[0].Name != SubnetEnv || !node.Others[0].Written.Equal(old) {
		t.Errorf("others %+v", node.Others)
	}
}

func TestAConfigurationChangedLaterIsNotInForce(t *testing.T) {
	n := labtest.New(t)
	root := t.TempDir()
	write(t, root, NetConf, `{"Network": "10.244.0.0/16", "EnableNFTables": true}`)
	file := filepath.Join(root, NetConf)
	at := func(d time.Duration) flannel.Node {
		p := diagnose.Process{PID: 1 << 30, Comm: "flanneld", Cmdline: []string{"flanneld"}, Started: flannel.Time{Wall: time.Now()}}
		when := time.Now().Add(d)
		if err := os.Chtimes(file, when, when); err != nil {
			t.Fatal(err)
		}
		return look(t, n, Options{Files: openRoot(t, root)}, []diagnose.Process{p}, nil)
	}
	if node := at(-time.Hour); node.NFTables.State != flannel.Known || !node.NFTables.Value || len(node.Problems) != 0 {
		t.Errorf("older than flanneld: %+v, %v", node.NFTables, node.Problems)
	}
	if node := at(time.Hour); node.NFTables.State == flannel.Known || len(node.Problems) != 1 || node.Problems[0].File != NetConf {
		t.Errorf("newer than flanneld: %+v, %v", node.NFTables, node.Problems)
	}
}

func TestKubeProxyTellsTheNetwork(t *testing.T) {
	n := labtest.New(t)
	n.Shell("mkdir /run/kube-proxy; printf 'apiVersion: x\\nclusterCIDR: 10.244.0.0/16,fd00:244::/48\\nmode: \"\"\\n' > /run/kube-proxy/config.conf")
	p, _ := start(t, n, "kube-proxy", "--config=/run/kube-proxy/config.conf")
	options := Options{Files: openRoot(t, t.TempDir()), Networks: nets("10.1.0.0/16"), Subnets: nets("10.244.7.0/24")}
	node := look(t, n, options, nil, []diagnose.Process{p})
	want := fmt.Sprintf("[10.244.0.0/16 fd00:244::/48] from /proc/%d/root/run/kube-proxy/config.conf", p.PID)
	if got := prefixesRead(node.Networks); got != want {
		t.Errorf("networks %s, want %s", got, want)
	}
	if got := prefixesRead(node.Subnets); got != "[10.244.7.0/24] from --network and --subnet" {
		t.Errorf("subnets %s", got)
	}
	p.Cmdline = []string{"kube-proxy", "--cluster-cidr=10.42.0.0/16"}
	node = look(t, n, options, nil, []diagnose.Process{p})
	if got := prefixesRead(node.Networks); !strings.HasPrefix(got, "[10.42.0.0/16] from flags of kube-proxy") {
		t.Errorf("networks %s", got)
	}
}

func TestRulesTellNetworksWhereNothingElseDoes(t *testing.T) {
	n := labtest.New(t)
	rs, err := flannel.ParseSave("*nat\n:POSTROUTING ACCEPT [0:0]\n:FLANNEL-POSTRTG - [0:0]\n"+
		"-A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\n"+
		"-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment \"flanneld masq\" -j RETURN\n"+
		"-A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -m comment --comment \"flanneld masq\" -j RETURN\n"+
		"-A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment \"flanneld masq\" -j RETURN\n"+
		"-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment \"flanneld masq\" -j RETURN\n"+
		"-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment \"flanneld masq\" -j MASQUERADE --random-fully\n"+
		"-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment \"flanneld masq\" -j MASQUERADE --random-fully\n"+
		"COMMIT\n", flannel.IptablesNft, flannel.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	node := look(t, n, Options{Files: openRoot(t, t.TempDir())}, nil, nil, nil, rs)
	if prefixesRead(node.Networks) != "[10.244.0.0/16] from rules in iptables-nft" || prefixesRead(node.Subnets) != "[10.244.1.0/24] from rules in iptables-nft" {
		t.Errorf("networks %s, subnets %s", prefixesRead(node.Networks), prefixesRead(node.Subnets))
	}
}

func TestWithoutPtraceTheContainersFilesAreUnreadable(t *testing.T) {
	n := labtest.New(t)
	p, _ := start(t, n, "flanneld", "--ip-masq")
	p.Kind, p.Env = diagnose.ProcFlanneld, nil
	var node flannel.Node
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread has lost a privilege
		done <- func() error {
			if err := dropPtrace(); err != nil {
				return err
			}
			r, err := Open(Options{Files: openRoot(t, t.TempDir())})
			if err != nil {
				return err
			}
			defer r.Close()
			node = r.Node(flannel.Know([]diagnose.Process{p}, "", flannel.Time{}), nil, nil, flannel.Time{})
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if node.Networks.State != flannel.Unreadable || !strings.Contains(node.Networks.Why, "CAP_SYS_PTRACE") {
		t.Errorf("networks %+v", node.Networks)
	}
	if !node.IPMasq.Value || node.ForwardRules.State != flannel.Unreadable {
		t.Errorf("ip-masq %+v, forward rules %+v", node.IPMasq, node.ForwardRules)
	}
}

func dropPtrace() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
	return unix.Capset(&head, &data[0])
}

func TestDamagedFilesAreProblemsAndNotFacts(t *testing.T) {
	n := labtest.New(t)
	root, state := t.TempDir(), t.TempDir()
	write(t, root, SubnetEnv, "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.24")
	write(t, root, NetConf, strings.Repeat("x", maxConfig+1))
	write(t, state, savedName, "{}")
	node := look(t, n, Options{Files: openRoot(t, root), State: state}, nil, nil)
	if prefixesRead(node.Networks) != "[10.244.0.0/16] from "+SubnetEnv || node.Subnets.State != flannel.Unreadable {
		t.Errorf("networks %s, subnets %s", prefixesRead(node.Networks), prefixesRead(node.Subnets))
	}
	if !strings.Contains(node.Subnets.Why, NetConf+": ") || !strings.Contains(node.Subnets.Why, ErrTooLarge.Error()) {
		t.Errorf("why: %s", node.Subnets.Why)
	}
	var files []string
	for _, p := range node.Problems {
		files = append(files, fmt.Sprintf("%s:%d", p.File, p.Line))
	}
	if got := strings.Join(files, " "); !strings.Contains(got, SubnetEnv+":2") || !strings.Contains(got, savedName+":0") {
		t.Errorf("problems %v", node.Problems)
	}
}

func TestSaveIsPrivateWholeAndSparing(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, savedName)
	n := Combine(Evidence{Claims: []Claim{{Source: SubnetEnv, Networks: nets("10.244.0.0/16"), Subnets: nets("10.244.1.0/24")}}}, flannel.Time{})

	victim := filepath.Join(dir, "victim")
	write(t, dir, "victim", "untouched")
	if err := os.Symlink(victim, name); err != nil {
		t.Fatal(err)
	}
	if err := Save(dir, n, time.Now()); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(victim); string(b) != "untouched" {
		t.Errorf("a link was followed: %q", b)
	}
	info, err := os.Lstat(name)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("mode %v, %v", info, err)
	}
	if err := Save(dir, n, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if again, _ := os.Lstat(name); !os.SameFile(info, again) {
		t.Error("the same facts were written again")
	}
	n.MTU = flannel.Know(1400, SubnetEnv, flannel.Time{})
	if err := Save(dir, n, time.Now()); err != nil {
		t.Fatal(err)
	}
	if again, _ := os.Lstat(name); os.SameFile(info, again) {
		t.Error("changed facts were not written")
	}
	names, _ := os.ReadDir(dir)
	if len(names) != 2 {
		t.Errorf("left behind: %v", names)
	}
	if err := Save(filepath.Join(dir, "nowhere"), n, time.Now()); err == nil || !strings.HasPrefix(err.Error(), "save node facts: ") {
		t.Errorf("error %v", err)
	}
}

func TestRunningLeavesOutK3sWithoutFlannel(t *testing.T) {
	root := t.TempDir()
	r := &Reader{options: Options{Files: openRoot(t, root)}}
	procs := flannel.Know([]diagnose.Process{{PID: 1, Kind: diagnose.ProcK3s}, {PID: 2, Kind: diagnose.ProcFlanneld}}, "", flannel.Time{})
	if got := r.Running(procs).Value; len(got) != 2 {
		t.Errorf("without a file: %v", got)
	}
	write(t, root, k3sConfig, "flannel-backend: host-gw\n")
	write(t, root, k3sConfig+".d/10-calico.yaml", "flannel-backend: \"none\"\n")
	if got := r.Running(procs).Value; len(got) != 1 || got[0].PID != 2 {
		t.Errorf("with a file: %v", got)
	}
}

func BenchmarkNode(b *testing.B) {
	n := labtest.New(b)
	root := b.TempDir()
	write(b, root, SubnetEnv, envText)
	for i := range 250 {
		write(b, root, fmt.Sprintf("var/lib/kubelet/pods/%d/volumes/kubernetes.io~configmap/cfg/x", i), "")
	}
	if err := n.Do(func() error {
		r, err := Open(Options{Files: openRoot(b, root)})
		if err != nil {
			return err
		}
		defer r.Close()
		b.ReportAllocs()
		for b.Loop() {
			r.Node(flannel.Reading[[]diagnose.Process]{}, nil, nil, flannel.Time{Boot: 1})
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

// flanneld writes into subnet.env what is in force; a wrapper or a file may have told it.
func TestSubnetEnvOutweighsAFlagThatIsNotThere(t *testing.T) {
	n := labtest.New(t)
	n.Write("/run/flannel/subnet.env", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPMASQ=true\n")
	p, _ := start(t, n, "flanneld", "--kube-subnet-mgr")
	look := func() flannel.Node {
		return look(t, n, Options{Files: openRoot(t, n.Root())}, []diagnose.Process{p}, nil)
	}
	if node := look(); node.IPMasq.State != flannel.Known || !node.IPMasq.Value {
		t.Errorf("beside a subnet.env that says so, ip-masq is %+v", node.IPMasq)
	}
	n.Must("rm /run/flannel/subnet.env")
	if node := look(); node.IPMasq.State != flannel.Known || node.IPMasq.Value {
		t.Errorf("by default ip-masq is %+v", node.IPMasq)
	}
}
