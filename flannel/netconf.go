package flannel

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
)

// NetConf is what a net-conf.json tells, which is Flannel's configuration of the whole cluster. Its defaults are Flannel's.
type NetConf struct {
	Networks       []netip.Prefix // of the families that are enabled, masked
	EnableIPv4     bool           // true unless told otherwise
	EnableIPv6     bool
	EnableNFTables bool   // native tables instead of iptables, from v0.25.0
	Backend        string // "vxlan", "host-gw", …; "udp" where no backend is given; "" where its type is unreadable
	SubnetLen      int    // length of a node's subnet, 0 if not given
	IPv6SubnetLen  int
	Ignored        []IgnoredKey
}

// IgnoredKey is a key that no version of Flannel reads, for instance TrafficManager.
type IgnoredKey struct {
	Key  string
	Line int
}

// netConfKeys are the keys that Flannel reads. Like its JSON decoder, nobody minds their case.
var netConfKeys = []string{
	"EnableIPv4", "EnableIPv6", "EnableNFTables", "Network", "IPv6Network", "SubnetMin", "SubnetMax", "IPv6SubnetMin",
	"IPv6SubnetMax", "SubnetLen", "IPv6SubnetLen", "Backend",
}

// ParseNetConf reads a net-conf.json. Every fault is a problem with its line; of a torn file the values before the tear are
// kept. Flannel itself would refuse such a file whole.
func ParseNetConf(data []byte, file string) (NetConf, []Problem) {
	p := confParser{problems: problems{file: file}, data: data, seen: map[string]int{}}
	p.conf = NetConf{EnableIPv4: true, Backend: "udp"}
	if len(bytes.TrimSpace(data)) == 0 {
		p.add(0, "file is empty")
		return p.conf, p.all()
	}
	p.dec = json.NewDecoder(bytes.NewReader(data))
	if err := p.object(); err != nil {
		p.add(p.faultLine(err), "%s", fault(err))
	}
	p.whole()
	return p.conf, p.all()
}

type confParser struct {
	problems
	data     []byte
	dec      *json.Decoder
	conf     NetConf
	networks [2]netip.Prefix // IPv4, IPv6
	seen     map[string]int  // where each key was set
}

var errNoObject = errors.New("file is no JSON object")

var errTrailing = errors.New("more follows after the JSON object")

func fault(err error) string {
	switch {
	case errors.Is(err, errNoObject), errors.Is(err, errTrailing):
		return err.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "file ends within the JSON object"
	}
	return "JSON is broken: " + Printable(err.Error())
}

// faultLine is the line on which reading stopped.
func (p *confParser) faultLine(err error) int {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return p.lineAt(len(bytes.TrimRight(p.data, " \t\r\n")))
	}
	return p.lineAt(p.skipBlank(int(p.dec.InputOffset())))
}

func (p *confParser) lineAt(offset int) int {
	return 1 + bytes.Count(p.data[:min(offset, len(p.data))], []byte("\n"))
}

func (p *confParser) skipBlank(offset int) int {
	for offset < len(p.data) && (blank(p.data[offset]) || p.data[offset] == ',' || p.data[offset] == ':') {
		offset++
	}
	return offset
}

func (p *confParser) object() error {
	start, err := p.dec.Token()
	if err != nil {
		return err
	}
	if start != json.Delim('{') {
		return errNoObject
	}
	for p.dec.More() {
		token, err := p.dec.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string) // the decoder lets nothing else stand for a key
		line := p.lineAt(int(p.dec.InputOffset()))
		var value json.RawMessage
		if err := p.dec.Decode(&value); err != nil {
			return err
		}
		p.set(line, key, value)
	}
	if _, err := p.dec.Token(); err != nil {
		return err
	}
	if len(bytes.TrimSpace(p.data[p.dec.InputOffset():])) > 0 {
		return errTrailing
	}
	return nil
}

func (p *confParser) set(line int, key string, value json.RawMessage) {
	i := slices.IndexFunc(netConfKeys, func(k string) bool { return strings.EqualFold(k, key) })
	if i < 0 {
		p.conf.Ignored = append(p.conf.Ignored, IgnoredKey{Key: key, Line: line})
		return
	}
	key = netConfKeys[i]
	if before := p.seen[key]; before > 0 {
		p.add(line, "%s is set a second time, after line %d; the last one counts", key, before)
	}
	p.seen[key] = line
	switch key {
	case "Network":
		p.network(line, key, value, IPv4)
	case "IPv6Network":
		p.network(line, key, value, IPv6)
	case "EnableIPv4":
		p.value(line, key, value, &p.conf.EnableIPv4, "neither true nor false")
	case "EnableIPv6":
		p.value(line, key, value, &p.conf.EnableIPv6, "neither true nor false")
	case "EnableNFTables":
		p.value(line, key, value, &p.conf.EnableNFTables, "neither true nor false")
	case "SubnetLen":
		p.length(line, key, value, &p.conf.SubnetLen, IPv4)
	case "IPv6SubnetLen":
		p.length(line, key, value, &p.conf.IPv6SubnetLen, IPv6)
	case "Backend":
		p.backend(line, value)
	}
}

// value reads a value into one of its type, which is left alone if it is of another.
func (p *confParser) value(line int, key string, value json.RawMessage, into any, otherwise string) bool {
	if err := json.Unmarshal(value, into); err != nil {
		p.add(line, "%s: %s is %s", key, brief(string(value)), otherwise)
		return false
	}
	return true
}

func (p *confParser) network(line int, key string, value json.RawMessage, f Family) {
	var text string
	if !p.value(line, key, value, &text, "no network in CIDR form") {
		return
	}
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		p.add(line, "%s: %s is no network in CIDR form", key, shown(text))
	case prefix.Addr().Is4() != (f == IPv4):
		p.add(line, "%s: %s is of the other address family", key, prefix)
	case prefix.Bits() > 0: // Flannel takes 0.0.0.0/0 and ::/0 for "none"
		p.networks[f-IPv4] = prefix.Masked()
	}
}

func (p *confParser) length(line int, key string, value json.RawMessage, into *int, f Family) {
	var n int
	if !p.value(line, key, value, &n, "no length") {
		return
	}
	if n < 0 || n > f.Bits() {
		p.add(line, "%s: %d is no length of a prefix of %s", key, n, f)
		return
	}
	*into = n
}

func (p *confParser) backend(line int, value json.RawMessage) {
	var b struct{ Type string }
	if !p.value(line, "Backend", value, &b, "no object with a Type") || b.Type == "" {
		p.conf.Backend = ""
		return
	}
	p.conf.Backend = b.Type
}

// whole picks the networks of the enabled families.
func (p *confParser) whole() {
	enabled := [2]bool{p.conf.EnableIPv4, p.conf.EnableIPv6}
	for i, prefix := range p.networks {
		if enabled[i] && prefix.IsValid() {
			p.conf.Networks = append(p.conf.Networks, prefix)
		}
	}
	if len(p.conf.Networks) == 0 && len(p.list) == 0 {
		p.add(0, "file names no network")
	}
}
