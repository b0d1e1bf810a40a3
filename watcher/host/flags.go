package host

import (
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Paths that flanneld uses unless a flag names others.
const (
	SubnetEnv = "/run/flannel/subnet.env"
	NetConf   = "/etc/kube-flannel/net-conf.json"
)

// flanneldBools are the flags of flanneld (all versions) that take no separate value. Every other flag does.
var flanneldBools = []string{
	"ip-masq", "kube-subnet-mgr", "version", "help", "h", "iptables-forward-rules", "set-node-network-unavailable",
	"use-multi-cluster-cidr", "ip-blackhole-route", "ip-masq-fully-random-disable", "logtostderr", "alsologtostderr",
}

// flanneldFlags reads a command line as Go's flag package does: one dash or two, the last mention wins, a bool takes its
// value only after "=", and the first word that is no flag ends the list.
func flanneldFlags(args []string) map[string]string {
	flags := map[string]string{}
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		name := strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-")
		if name == word || name == "" {
			break
		}
		name, value, given := strings.Cut(name, "=")
		switch {
		case given:
		case slices.Contains(flanneldBools, name):
			value = "true"
		case len(args) > 0:
			value, args = args[0], args[1:]
		}
		flags[name] = value
	}
	return flags
}

// words gives the arguments of a process without its own name.
func words(cmdline []string) []string {
	if len(cmdline) == 0 {
		return nil
	}
	return cmdline[1:]
}

// flanneld is what one flanneld was told: its flags, and for those not given FLANNELD_* of its environment.
type flanneld struct {
	flags map[string]string
	env   map[string]string
}

func (f flanneld) get(name string) (string, bool) {
	if v, ok := f.flags[name]; ok {
		return v, true
	}
	v := f.env["FLANNELD_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))]
	return v, v != ""
}

// bool gives the value in force, or nil where the flag was not given and the environment, which decides then, is unknown.
func (f flanneld) bool(name string, unset bool) *bool {
	v, ok := f.get(name)
	if !ok {
		if f.env == nil {
			return nil
		}
		return &unset
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return nil
	}
	return &b
}

func (f flanneld) path(name, unset string) string {
	if v, ok := f.get(name); ok && path.IsAbs(v) {
		return v
	}
	return unset
}

func (f flanneld) resync() time.Duration {
	v, ok := f.get("iptables-resync")
	if !ok && f.env != nil {
		v = "5"
	}
	n, err := strconv.Atoi(v)
	if err != nil || n <= 0 || n > 1<<20 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// settings leaves RandomFully unsaid unless it is switched off: else it depends on the iptables that flanneld finds.
func (f flanneld) settings() Settings {
	s := Settings{
		IPMasq:       f.bool("ip-masq", false),
		ForwardRules: f.bool("iptables-forward-rules", true),
		Resync:       f.resync(),
	}
	if off := f.bool("ip-masq-fully-random-disable", false); off != nil && *off {
		no := false
		s.RandomFully = &no
	}
	return s
}

func flanneldOf(p diagnose.Process) flanneld {
	return flanneld{flags: flanneldFlags(words(p.Cmdline)), env: p.Env}
}

// k3sResync is how often k3s looks after its masquerade rules; it is a constant there (the forward rules: 50 s).
const k3sResync = 60 * time.Second

// k3sClaim is what k3s decides by constants, and a server by its flags and configuration files, which may be unknown. An
// agent is told by its server whether IPv6 is masqueraded, so there it stays unsaid.
func k3sClaim(p diagnose.Process, config []string, configKnown bool) Claim {
	yes := true
	c := Claim{Source: sourceOf(p), Settings: Settings{IPMasq: &yes, ForwardRules: &yes, Resync: k3sResync}}
	if !k3sServer(p) {
		return c
	}
	args := slices.Concat(config, words(p.Cmdline))
	if masq6 := boolFlag(args, "--flannel-ipv6-masq"); masq6 || configKnown {
		c.IPMasq6 = &masq6
	}
	if v, ok := flag(args, "--cluster-cidr"); ok {
		c.Networks = prefixes(v)
	}
	return c
}

func k3sServer(p diagnose.Process) bool {
	return p.Comm == "k3s-server" || p.Comm == "k3s" && slices.Contains(p.Cmdline, "server")
}

// yamlFlags reads the configuration of k3s, in which every key is a flag: "key: value" lines at the left margin. Lists and
// what is nested are left out; none of the flags in question needs them.
func yamlFlags(data []byte) []string {
	var out []string
	for line := range strings.Lines(string(data)) {
		key, value, ok := strings.Cut(strings.TrimRight(line, " \t\r\n"), ":")
		if !ok || key == "" || strings.ContainsAny(key, " \t#") {
			continue
		}
		value, _, _ = strings.Cut(value, " #")
		if value = strings.Trim(strings.TrimSpace(value), `"'`); value != "" {
			out = append(out, "--"+strings.Trim(key, `"'`)+"="+value)
		}
	}
	return out
}

// flag finds the last mention of a long flag with a value, as pflag and urfave/cli read it.
func flag(cmdline []string, name string) (string, bool) {
	value, found := "", false
	for i, w := range cmdline {
		switch {
		case w == name && i+1 < len(cmdline):
			value, found = cmdline[i+1], true
		case strings.HasPrefix(w, name+"="):
			value, found = w[len(name)+1:], true
		}
	}
	return value, found
}

func boolFlag(cmdline []string, name string) bool {
	on := false
	for _, w := range cmdline {
		switch {
		case w == name:
			on = true
		case strings.HasPrefix(w, name+"="):
			on, _ = strconv.ParseBool(w[len(name)+1:])
		}
	}
	return on
}

// prefixes reads a list of networks separated by commas. One that cannot be read spoils the list: half of it would be
// taken for the whole.
func prefixes(list string) []netip.Prefix {
	var out []netip.Prefix
	for word := range strings.SplitSeq(strings.Trim(strings.TrimSpace(list), `"'`), ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(word))
		if err != nil {
			return nil
		}
		out = append(out, p.Masked())
	}
	return out
}

func sourceOf(p diagnose.Process) string {
	return "flags of " + flannel.Printable(p.Comm) + " (pid " + strconv.Itoa(p.PID) + ")"
}
