package watcher_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
	"flanwatch/watcher/legacy"
	"flanwatch/watcher/nft"
)

// restart is what a real flanneld did to the packet filter while it was restarted, as recorded.
type restart struct {
	Name    string
	Version string
	Backend flannel.Backend
	Dual    bool    // both families
	Ended   float64 // when its process had ended, milliseconds from the start of the record
	Started float64 // when the next was started
	Commits []recorded

	Before    map[string]int // rules of each chain when it began, nil where all were there
	Others    int            // rules of others in the same table
	NoForward bool           // flanneld was told to keep none
	Network   string         // "new" where the rules that were written are those of another network
}

// recorded is one commit.
type recorded struct {
	MS      float64
	Program string   // "" in legacy tables, which do not tell
	Tables  []string // "+" or "-", family and name of native tables
	Changes []changed
}

// changed is what a commit did to a chain.
type changed struct {
	Chain          string // family, table and name
	Made           bool
	Removed, Added int // rules; of a base chain, Flannel's jump
}

// Networks of the recorded nodes, and of those that had another when flanneld came back.
var (
	recordedNetworks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")}
	recordedSubnets  = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:0:1::/64")}
	newNetworks      = []netip.Prefix{netip.MustParsePrefix("10.245.0.0/16")}
	newSubnets       = []netip.Prefix{netip.MustParsePrefix("10.245.1.0/24")}
)

const newSubnetEnv = "FLANNEL_NETWORK=10.245.0.0/16\nFLANNEL_SUBNET=10.245.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"

// wanted lists the chains that its version keeps: while it goes from one mode to the other, those of both.
func (r restart) wanted() []flannel.Wanted { return r.expected(recordedNetworks, recordedSubnets) }

func (r restart) expected(networks, subnets []netip.Prefix) (all []flannel.Wanted) {
	families := flannel.Families[:1]
	if r.Dual {
		families = flannel.Families[:]
	}
	dialects := []flannel.Backend{r.Backend}
	if r.Before != nil {
		dialects = append(dialects, flannel.Nftables)
	}
	o := flannel.Options{RandomFully: true, Forward: !r.NoForward, Masq: true}
	for _, b := range dialects {
		g := flannel.GenV0210
		switch {
		case b == flannel.Nftables:
			g = flannel.GenV0250
		case r.Version == "v0.20.2":
			g = flannel.GenV0202
		}
		for _, f := range families {
			all = append(all, flannel.Expected(networks, subnets, g, o, b, f)...)
		}
	}
	return all
}

// written gives the rules that flanneld writes into a chain.
func (r restart) written(w flannel.Wanted) []flannel.Rule {
	if r.Network == "" {
		return w.Rules
	}
	all := r.expected(newNetworks, newSubnets)
	return all[slices.IndexFunc(all, func(x flannel.Wanted) bool { return x.ID == w.ID })].Rules
}

// before tells how many of its rules a chain had when it began, and whether it and its jump were there.
func (r restart) before(w flannel.Wanted) (rules int, present, hooked bool) {
	if r.Before == nil {
		return len(w.Rules), true, true
	}
	n, present := r.Before[w.ID.Family.String()+" "+w.ID.Table+" "+w.ID.Name]
	return n, present, r.Before[w.ID.Family.String()+" "+w.ID.Table+" "+w.HookChain.Name] > 0
}

// of finds the chain that a change is about, and tells whether it is about Flannel's own and not the base chain.
func (r restart) of(c changed) (w flannel.Wanted, own bool) {
	words := strings.Fields(c.Chain)
	for _, w := range r.wanted() {
		if w.ID.Family.String() == words[0] && w.ID.Table == words[1] && (w.ID.Name == words[2] || w.HookChain.Name == words[2]) {
			return w, w.ID.Name == words[2]
		}
	}
	panic("no chain of Flannel's: " + c.Chain)
}

// On a node, flanneld and the programs that it starts are processes of those names. Here they are this executable, started
// through links that are called so.
const (
	replayMark = "FLANWATCH_TEST_REPLAY"
	replayDir  = "/run/replay"           // the links, in the namespace's private /run
	legacyDir  = "/run/legacy"           // links to the real programs
	lead       = 1200 * time.Millisecond // a process needs to be in time on a busy machine
)

// errand is what a process of the replay has to do.
type errand struct {
	Restart restart
	Zero    time.Duration // boot time of the record's start
	First   int           // of the commits
	Count   int
	Stays   bool // goes on living, as flanneld does
}

// The kernel reports the thread that commits: the first, whose number is that of the process.
func init() {
	if os.Getenv(replayMark) != "" {
		runtime.LockOSThread()
	}
}

// replayPart plays the part of a process of the replay and does not return, if this is one.
func replayPart() {
	if os.Getenv(replayMark) == "" {
		return
	}
	var e errand
	err := json.Unmarshal([]byte(os.Getenv(replayMark)), &e)
	switch {
	case err != nil:
	case filepath.Base(os.Args[0]) == "flanneld":
		err = e.flanneld()
	default:
		err = e.write()
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// prepared is a process of the replay.
func (e errand) prepared(argv ...string) *exec.Cmd {
	text, err := json.Marshal(e)
	if err != nil {
		panic(err) // it holds nothing that cannot be written
	}
	cmd := exec.Command(filepath.Join(replayDir, filepath.Base(argv[0])))
	cmd.Args = argv
	cmd.Env = []string{replayMark + "=" + string(text)}
	cmd.Stdout = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd
}

func link(dir, name, target string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Symlink(target, filepath.Join(dir, name))
}

// flanneld starts a process for each commit in time.
func (e errand) flanneld() error {
	var children sync.WaitGroup
	var byTools []errand
	for i, c := range e.Restart.Commits[e.First : e.First+e.Count] {
		one := errand{Restart: e.Restart, Zero: e.Zero, First: e.First + i, Count: 1}
		if c.Program == "" {
			byTools = append(byTools, one)
			continue
		}
		cmd := one.prepared(fullName(c.Program))
		if err := cmd.Start(); err != nil {
			return err
		}
		children.Go(func() { _ = cmd.Wait() }) // it says itself what went wrong
	}
	for _, one := range byTools {
		if err := one.writeLegacy(); err != nil {
			return err
		}
	}
	children.Wait()
	if e.Restart.Network != "" && e.First+e.Count == len(e.Restart.Commits) {
		if err := os.WriteFile("/run/flannel/subnet.env", []byte(newSubnetEnv), 0o644); err != nil {
			return err
		}
	}
	if e.Stays {
		select {}
	}
	return nil
}

// fullName undoes the kernel's shortening of the names of programs.
func fullName(comm string) string {
	for _, name := range []string{"iptables-restore", "ip6tables-restore"} {
		if strings.HasPrefix(name, comm) && len(comm) == 15 {
			return name
		}
	}
	return comm
}

func (e errand) at() time.Duration {
	return e.Zero + duration(e.Restart.Commits[e.First].MS)
}

// write makes one commit at its time and says when that was: before and after the call.
func (e errand) write() error {
	_ = legacy.Hurry() // to be in time
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	reader, err := nft.Open()
	if err != nil {
		return err
	}
	const apart = 4 * time.Millisecond // no commit follows another sooner
	sleepUntil(e.at() - apart)
	ours, native, err := reader.Read()
	if err != nil {
		return err
	}
	var b wire.Batch
	if err := e.batch(&b, map[flannel.Backend]*flannel.Ruleset{flannel.IptablesNft: ours, flannel.Nftables: native}); err != nil {
		return err
	}
	sleepUntil(e.at())
	sent := bootTime()
	if err := wire.Commit(conn, &b); err != nil {
		return fmt.Errorf("commit %d of %s: %w", e.First+1, e.Restart.Name, err)
	}
	fmt.Println(e.First, int64(sent-e.Zero), int64(bootTime()-e.Zero))
	return nil
}

// batch makes what was recorded of the rules that are there.
func (e errand) batch(b *wire.Batch, now map[flannel.Backend]*flannel.Ruleset) error {
	commit := e.Restart.Commits[e.First]
	for _, t := range commit.Tables {
		words := strings.Fields(t[1:])
		id := flannel.TableID{Backend: flannel.Nftables, Family: flannel.IPv4, Name: words[1]}
		if words[0] == "ip6" {
			id.Family = flannel.IPv6
		}
		if t[0] == '+' {
			b.AddTable(id)
		} else {
			b.DeleteTable(id)
		}
	}
	for _, c := range commit.Changes {
		w, own := e.Restart.of(c)
		if c.Made && w.Base != nil {
			if err := b.AddBaseChain(w.ID, *w.Base); err != nil {
				return err
			}
		}
		id, rules := w.ID, e.Restart.written(w)
		if !own {
			id, rules = w.HookChain, []flannel.Rule{w.Hook}
		}
		remove(b, now[id.Backend].Chain(id), c.Removed, func(r flannel.Rule) bool { return own || r.Target.Chain == w.ID.Name })
		for _, r := range rules[:min(c.Added, len(rules))] {
			exprs, err := wire.Encode(id, r)
			if err != nil {
				return err
			}
			b.AppendRule(id, exprs)
		}
	}
	return nil
}

// remove takes the first rules out of a chain that are meant.
func remove(b *wire.Batch, c *flannel.Chain, count int, meant func(flannel.Rule) bool) {
	for _, e := range c.Entries {
		if count > 0 && meant(e.Rule) {
			b.DeleteRule(c.ID, e.Handle)
			count--
		}
	}
}

// writeLegacy makes one commit with the real programs.
func (e errand) writeLegacy() error {
	sleepUntil(e.at())
	start := bootTime()
	commit := e.Restart.Commits[e.First]
	w, _ := e.Restart.of(commit.Changes[0])
	flush := len(commit.Changes) == 1 && commit.Changes[0].Removed > 0
	argv := []string{"iptables", "-w", "-t", w.ID.Table, "-F", w.ID.Name}
	if !flush {
		argv = []string{"iptables-restore", "-w", "--noflush"}
	}
	if w.ID.Family == flannel.IPv6 {
		argv[0] = strings.Replace(argv[0], "iptables", "ip6tables", 1)
	}
	cmd := exec.Command(filepath.Join(legacyDir, argv[0]))
	cmd.Args = argv
	cmd.Stdin = bytes.NewReader(e.restoreLines(w, commit))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
	}
	fmt.Println(e.First, int64(start-e.Zero), int64(bootTime()-e.Zero))
	return nil
}

// restoreLines takes rules away with their jump, or writes all anew.
func (e errand) restoreLines(w flannel.Wanted, commit recorded) []byte {
	jump := slices.ContainsFunc(commit.Changes, func(c changed) bool { _, own := e.Restart.of(c); return !own })
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%s\n", w.ID.Table)
	switch filled := commit.Changes[0].Added > 0; {
	case filled && !jump:
		fmt.Fprintf(&b, "-D %s %s\n", w.HookChain.Name, w.Hook)
		fallthrough
	case filled:
		fmt.Fprintf(&b, "-A %s %s\n", w.HookChain.Name, w.Hook)
		for _, r := range e.Restart.written(w) {
			fmt.Fprintf(&b, "-A %s %s\n", w.ID.Name, r)
		}
	default:
		fmt.Fprintf(&b, "-D %s %s\n", w.HookChain.Name, w.Hook)
		for _, r := range w.Rules[:commit.Changes[0].Removed] {
			fmt.Fprintf(&b, "-D %s %s\n", w.ID.Name, r)
		}
	}
	b.WriteString("COMMIT\n")
	return b.Bytes()
}

func sleepUntil(at time.Duration) { time.Sleep(at - bootTime()) }

func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}
