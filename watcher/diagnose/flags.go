package diagnose

import (
	"strconv"
	"strings"
	"time"

	"flanwatch/flannel"
)

// answer is yes, no, or not known.
type answer uint8

const (
	unknown answer = iota
	no
	yes
)

func answerOf(b bool) answer {
	if b {
		return yes
	}
	return no
}

// flags are what is known of flanneld's settings, from its command line and environment, and from the node's files.
type flags struct {
	masq    [2]answer // by family: k3s masquerades IPv6 only if told to
	forward answer
	random  answer
	native  answer // nftables mode
	resync  time.Duration
}

func (f flags) masquerade(family flannel.Family) answer { return f.masq[family-flannel.IPv4] }

// The repair periods that hold where no flag says otherwise.
const (
	defaultResync = 5 * time.Second
	k3sResync     = 60 * time.Second
)

// readFlags takes the process's own words first, then what files say, then the defaults of a process whose words could be
// read in full.
func readFlags(f Facts, h History) flags {
	var out flags
	if n := f.Node; true {
		out.masq = [2]answer{reading(n.IPMasq), reading(n.IPMasq)}
		out.forward, out.random = reading(n.ForwardRules), reading(n.RandomFully)
		out.native = reading(n.NFTables)
		out.resync, _ = n.Resync.Get()
	}
	for _, p := range f.Procs.Value {
		if p.Kind == ProcK3s {
			out.k3s(p)
		} else {
			out.flanneld(p)
		}
	}
	if out.resync == 0 {
		out.resync = max(h.Resync, defaultResync)
	}
	return out
}

func (f *flags) flanneld(p Process) {
	complete := len(p.Cmdline) > 1 && p.Env != nil
	set := func(to *answer, name string, def bool) {
		switch said := p.option(name); {
		case said != unknown:
			*to = said
		case complete && *to == unknown:
			*to = answerOf(def)
		}
	}
	set(&f.masq[0], "ip-masq", false)
	f.masq[1] = f.masq[0]
	set(&f.forward, "iptables-forward-rules", true)
	disable := unknown
	set(&disable, "ip-masq-fully-random-disable", false)
	if disable == yes {
		f.random = no
	}
	if n, err := strconv.Atoi(p.word("iptables-resync")); err == nil && n > 0 {
		f.resync = time.Duration(n) * time.Second
	}
}

// k3s sets most of Flannel's options itself: masquerading for IPv4 and forward rules on, repair every 60 s. Its own
// options can stand in a configuration file too, so an option that is not on the command line is not known to be off.
func (f *flags) k3s(p Process) {
	f.masq[0], f.forward, f.native = yes, yes, no
	f.masq[1] = p.option("flannel-ipv6-masq")
	f.resync = k3sResync
}

// runsFlannel tells whether the process runs Flannel at all: k3s can be told not to.
func (p Process) runsFlannel() bool { return p.Kind != ProcK3s || p.word("flannel-backend") != "none" }

// option gives a boolean option: a flag, or its FLANNELD_ variable.
func (p Process) option(name string) answer {
	switch strings.ToLower(p.word(name)) {
	case "":
		return unknown
	case "false", "f", "0":
		return no
	}
	return yes
}

// word gives the value of an option as flags and environment spell it, "true" for a bare flag, "" where it is not given.
// The last one counts; a flag beats the environment.
func (p Process) word(name string) string {
	word := p.Env["FLANNELD_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))]
	for i, arg := range p.Cmdline {
		flag := strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
		value, given := strings.CutPrefix(flag, name+"=")
		switch {
		case flag == arg:
		case given:
			word = value
		case flag != name:
		case i+1 < len(p.Cmdline) && takesWord(name) && !strings.HasPrefix(p.Cmdline[i+1], "-"):
			word = p.Cmdline[i+1]
		default:
			word = "true"
		}
	}
	return word
}

// takesWord tells options with a separate value from boolean ones, which take none.
func takesWord(name string) bool { return name == "iptables-resync" || name == "flannel-backend" }

func reading(r flannel.Reading[bool]) answer {
	v, known := r.Get()
	if !known {
		return unknown
	}
	return answerOf(v)
}
