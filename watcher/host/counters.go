package host

import (
	"strconv"
	"strings"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// discards are the counters that tell of pods' packets thrown away here, as nstat names them. A packet whose TTL is used up
// counts as IpInHdrErrors and is answered with an ICMP message of its own counter.
var discards = []string{
	"IpInHdrErrors", "IpInAddrErrors", "IpInDiscards", "IpOutDiscards", "IpOutNoRoutes", "IpExtInNoRoutes", "IcmpOutTimeExcds",
	"UdpInCsumErrors", "Ip6InHdrErrors", "Ip6InDiscards", "Ip6OutDiscards", "Ip6OutNoRoutes", "Icmp6OutTimeExcds", "Udp6InCsumErrors",
}

// parsePairs reads /proc/net/snmp and /proc/net/netstat: a line of names, then one of figures, each behind "Prefix:".
func parsePairs(text string, into map[string]uint64) {
	prefix, names := "", []string(nil)
	for line := range strings.Lines(text) {
		head, rest, ok := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if !ok {
			continue
		}
		if head != prefix {
			prefix, names = head, fields
			continue
		}
		for i := range min(len(names), len(fields)) {
			if n, err := strconv.ParseUint(fields[i], 10, 64); err == nil { // some are negative, and none of ours
				into[head+names[i]] = n
			}
		}
		prefix = ""
	}
}

// parseSNMP6 reads /proc/net/snmp6: a name and a figure a line.
func parseSNMP6(text string, into map[string]uint64) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 2 {
			if n, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
				into[fields[0]] = n
			}
		}
	}
}

// window is how far back a rise of a counter counts.
const window = time.Minute

// risen remembers what counters were, so that a rise can be told from what was counted long ago.
type risen struct{ past []sample }

type sample struct {
	at     flannel.Time
	totals map[string]uint64
}

// next takes a reading and tells each counter with its rise within the window.
func (r *risen) next(totals map[string]uint64, now flannel.Time) []diagnose.Counter {
	r.past = append(r.past, sample{now, totals})
	for len(r.past) > 2 && now.Sub(r.past[1].at) >= window {
		r.past = r.past[1:]
	}
	first := r.past[0]
	var out []diagnose.Counter
	for _, name := range discards {
		total, there := totals[name]
		if !there {
			continue
		}
		c := diagnose.Counter{Name: name, Total: total}
		if before, ok := first.totals[name]; ok && total > before {
			c.Rose, c.Over = total-before, now.Sub(first.at)
		}
		out = append(out, c)
	}
	return out
}
