package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flanwatch/flannel"

	"golang.org/x/sys/unix"
)

// daemon is flanneld as far as the packet filter sees it.
type daemon struct {
	native   bool // writes native tables
	apart    bool // has a /run/flannel of its own, as in Canal
	teardown bool // v0.25.0–v0.26.7 take their rules away at the end
	options  flannel.Options
}

const resyncPeriod = 5 * time.Second

// flanneld is the program of that name. It sets up its rules, writes subnet.env, says "ready" on its standard output and
// looks after its rules until it is told to end.
func flanneld(_ string, args []string) error {
	d := daemon{
		native:   os.Getenv(modeMark) == "nftables",
		apart:    os.Getenv(modeMark) == "canal",
		teardown: strings.HasPrefix(os.Getenv(versionMark), "v0.25.") || strings.HasPrefix(os.Getenv(versionMark), "v0.26."),
		options: flannel.Options{
			Masq:        slices.Contains(args, "--ip-masq"),
			Forward:     !slices.Contains(args, "--iptables-forward-rules=false"),
			RandomFully: true,
		},
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM)
	if err := d.moveIn(); err != nil {
		return err
	}
	if err := d.setUp(); err != nil {
		return err
	}
	if err := writeSubnetEnv(); err != nil {
		return err
	}
	fmt.Println("ready")
	return d.keep(stop)
}

// moveIn gives the daemon the file system of its container: an /etc with nothing but its configuration and, where the
// pod does not mount the node's, a /run/flannel of its own.
func (d daemon) moveIn() error {
	if err := mountEmpty("/etc"); err != nil {
		return err
	}
	if d.apart {
		if err := os.MkdirAll(filepath.Dir(subnetEnv), 0o755); err != nil {
			return err
		}
		if err := mountEmpty(filepath.Dir(subnetEnv)); err != nil {
			return err
		}
	}
	return writeFile("/etc/kube-flannel/net-conf.json", netConf(d.native))
}

func mountEmpty(folder string) error {
	if err := unix.Mount("tmpfs", folder, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", folder, err)
	}
	return nil
}

func (d daemon) keep(stop <-chan os.Signal) error {
	resync := time.NewTicker(resyncPeriod)
	defer resync.Stop()
	for {
		select {
		case <-stop:
			return d.tearDown()
		case <-resync.C:
			if d.native {
				continue // no version repairs its native tables
			}
			if err := d.eachTable(d.repair); err != nil {
				fmt.Fprintln(os.Stderr, err) // as flanneld does; the next round tries again
			}
		}
	}
}

// wanted gives the chains of one table of a family, at most one.
func (d daemon) wanted(f flannel.Family, table string) []flannel.Wanted {
	gen, backend := flannel.GenV0210, flannel.IptablesNft
	if d.native {
		gen, backend = flannel.GenV0250, flannel.Nftables
	}
	all := flannel.Expected(Networks, Subnets, gen, d.options, backend, f)
	return slices.DeleteFunc(all, func(w flannel.Wanted) bool { return !d.native && w.ID.Table != table })
}

// eachTable goes through the tables in the order of v0.28.9 and later.
func (d daemon) eachTable(do func(flannel.Wanted) error) error {
	for _, table := range []string{flannel.TableNat, flannel.TableFilter} {
		for _, f := range flannel.Families {
			for _, w := range d.wanted(f, table) {
				if err := do(w); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (d daemon) setUp() error {
	if !d.teardown { // v0.27.0 and later clean up at the start instead of at the end
		if err := d.cleanOther(); err != nil {
			return err
		}
	}
	if !d.native {
		if d.apart {
			if err := d.recycle(); err != nil {
				return err
			}
		}
		return d.eachTable(refill)
	}
	for _, f := range flannel.Families {
		for _, w := range d.wanted(f, "") {
			text, err := json.Marshal(nativeChain{w.ID, *w.Base, w.Rules})
			if err != nil {
				return err
			}
			if err := run(string(text), "nft", "-f", "-"); err != nil {
				return err
			}
		}
	}
	return nil
}

// cleanOther removes the rules of the mode that is not in use. In iptables it fails half-way, as Flannel does: the chain
// that it empties is still jumped to, and it does not get to the others.
func (d daemon) cleanOther() error {
	s, err := openRuleset()
	if err != nil {
		return err
	}
	defer s.close()
	for _, f := range flannel.Families {
		if d.native {
			masq := flannel.MasqChain(flannel.IptablesNft, f)
			if present, err := s.has(masq); err != nil {
				return err
			} else if !present {
				continue
			}
			run("", toolOf(f), "-t", masq.Table, "-F", masq.Name, "--wait") //nolint:errcheck // Flannel goes on too
			run("", toolOf(f), "-t", masq.Table, "-X", masq.Name, "--wait") //nolint:errcheck
			continue
		}
		tables, err := s.tables(f)
		if err != nil {
			return err
		}
		if slices.Contains(tables, flannel.NativeTable(f)) {
			if err := run("", "nft", "delete", "table", f.String(), flannel.NativeTable(f)); err != nil {
				return err
			}
		}
	}
	return nil
}

// recycle is what a start does first where no subnet.env tells of an earlier one, as in a new container of Canal: it takes
// away the rules of the network 0.0.0.0/0, of which the jump and the rule for kube-proxy's mark are there.
func (d daemon) recycle() error {
	for _, f := range flannel.Families {
		for _, w := range d.wanted(f, flannel.TableNat) {
			old := specs(w)[:2]
			if !look(w, old[0]) {
				continue
			}
			text := fmt.Sprintf("*%s\n-D %s %s\n-D %s %s\nCOMMIT\n", w.ID.Table, old[0].chain, old[0].rule, old[1].chain, old[1].rule)
			if err := run(text, toolOf(f)+"-restore", "--noflush", "--wait"); err != nil {
				return err
			}
		}
	}
	return nil
}

// refill is what every start does to a chain: make it, empty it, look for what is there, write all. The chain stays empty
// for as long as the looking takes. Flannel looks for each rule twice; the lab, whose programs start more slowly than the
// real ones, looks for the jump alone, and comes to about the same time.
func refill(w flannel.Wanted) error {
	tool := toolOf(w.ID.Family)
	if run("", tool, "-t", w.ID.Table, "-N", w.ID.Name, "--wait") == nil {
		return restore(w, nil) // nothing to look for in a new chain
	}
	if err := run("", tool, "-t", w.ID.Table, "-F", w.ID.Name, "--wait"); err != nil {
		return err
	}
	return restore(w, func(w flannel.Wanted, c change) bool { return c.chain != w.ID.Name && look(w, c) })
}

// repair writes a chain's rules anew if one of them is missing.
func (d daemon) repair(w flannel.Wanted) error {
	s, err := openRuleset()
	if err != nil {
		return err
	}
	defer s.close()
	present, err := s.has(w.ID)
	if err != nil {
		return err
	}
	if !present {
		return refill(w)
	}
	for _, r := range specs(w) {
		if err := s.check(w.ID.TableID(), r); errors.Is(err, errNoRule) {
			return restore(w, look)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// restore writes a chain and its jump in one transaction, in which what is there already is deleted first.
func restore(w flannel.Wanted, present func(w flannel.Wanted, c change) bool) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "*%s\n", w.ID.Table)
	for _, c := range specs(w) {
		if present != nil && present(w, c) {
			fmt.Fprintf(&text, "-D %s %s\n", c.chain, c.rule)
		}
		fmt.Fprintf(&text, "-A %s %s\n", c.chain, c.rule)
	}
	text.WriteString("COMMIT\n")
	return run(text.String(), toolOf(w.ID.Family)+"-restore", "--noflush", "--wait")
}

// look asks for one rule, by a process of its own.
func look(w flannel.Wanted, c change) bool {
	args := append([]string{toolOf(w.ID.Family), "-t", w.ID.Table, "-C", c.chain}, ruleWords(c.rule)...)
	return run("", append(args, "--wait")...) == nil
}

// tearDown is the end of a daemon. Versions that take their rules away leave the empty chains.
func (d daemon) tearDown() error {
	switch {
	case !d.teardown:
		return nil
	case d.native:
		for _, f := range flannel.Families {
			if err := run("", "nft", "delete", "table", f.String(), flannel.NativeTable(f)); err != nil {
				return err
			}
		}
		return nil
	}
	time.Sleep(time.Second)
	for _, f := range flannel.Families {
		var text bytes.Buffer
		for _, table := range []string{flannel.TableNat, flannel.TableFilter} {
			for _, w := range d.wanted(f, table) {
				fmt.Fprintf(&text, "*%s\n", table)
				for _, c := range specs(w) {
					fmt.Fprintf(&text, "-D %s %s\n", c.chain, c.rule)
				}
				text.WriteString("COMMIT\n")
			}
		}
		if err := run(text.String(), toolOf(f)+"-restore", "--noflush", "--wait"); err != nil {
			return err
		}
	}
	return nil
}

// specs lists a chain's jump and rules, in Flannel's order.
func specs(w flannel.Wanted) []change {
	out := []change{{chain: w.HookChain.Name, rule: w.Hook}}
	for _, r := range w.Rules {
		out = append(out, change{chain: w.ID.Name, rule: r})
	}
	return out
}

func ruleWords(r flannel.Rule) []string {
	words, _ := shellWords(r.String()) // canonical text closes its quotes
	return words
}

func toolOf(f flannel.Family) string {
	if f == flannel.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}
