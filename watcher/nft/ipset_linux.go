package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack/nfnl"
	"flanwatch/flannel/path"
)

// Numbers of linux/netfilter/ipset/ip_set.h.
const (
	ipsetProtocol = 6 // the oldest that is still spoken
	ipsetList     = 7
	ipsetByIndex  = 15

	ipsetAttrProtocol = 1
	ipsetAttrName     = 2
	ipsetAttrType     = 3
	ipsetAttrData     = 7
	ipsetAttrElements = 8
	ipsetAttrIndex    = 11

	ipsetAttrIP      = 1
	ipsetAttrIPTo    = 2
	ipsetAttrCidr    = 3
	ipsetAttrFlags   = 8
	ipsetAttrNetmask = 20

	ipsetNoMatch = 4 // an element that is an exception
)

var errSetType = errors.New("its type is not understood")

// Sets reads sets of ipset. Nothing is asked before a rule is found that looks into one, so that the kernel has loaded what
// it takes.
type Sets struct{ socket *socket }

// OpenSets opens a socket in the calling thread's network namespace.
func OpenSets() (*Sets, error) {
	s, err := dial()
	if err != nil {
		return nil, fmt.Errorf("open ipset: %w", err)
	}
	return &Sets{s}, nil
}

// Close closes the socket, and waits as Reader.Close does.
func (s *Sets) Close() error { return s.socket.close() }

// Name gives the name of the set that a rule knows by its number.
func (s *Sets) Name(index uint16) (string, error) {
	m, err := s.socket.ask(ipsetRequest(ipsetByIndex, 0, ipsetAttr(ipsetAttrIndex|unix.NLA_F_NET_BYTEORDER,
		binary.BigEndian.AppendUint16(nil, index))))
	if err != nil {
		return "", fmt.Errorf("find set %d of ipset: %w", index, nfnl.Explain(err))
	}
	for a := (attributes{rest: m.body}); a.next(); {
		if a.kind == ipsetAttrName {
			return string(a.text()), nil
		}
	}
	return "", fmt.Errorf("find set %d of ipset: %w", index, errMalformed)
}

// Set reads the addresses in a set. Of keys with several parts it takes the first; of what it does not understand, nothing.
func (s *Sets) Set(name string) (path.Set, error) {
	set, err := s.read(name)
	if err != nil {
		return path.Set{}, fmt.Errorf("read set %s of ipset: %w", name, nfnl.Explain(err))
	}
	return set, nil
}

func (s *Sets) read(name string) (path.Set, error) {
	var set path.Set
	r := ipsetReader{}
	if err := s.socket.send(ipsetRequest(ipsetList, unix.NLM_F_DUMP, ipsetAttr(ipsetAttrName, append([]byte(name), 0)))); err != nil {
		return set, err
	}
	for {
		m, err := s.socket.receive()
		switch {
		case err != nil:
			return set, err
		case m.kind == unix.NLMSG_DONE:
			set.First = strings.Contains(r.kind, ",")
			return set, r.trouble
		case m.kind == unix.NFNL_SUBSYS_IPSET<<8|ipsetList:
			r.message(m.body, &set)
		}
	}
}

// ipsetReader takes in the messages of a list.
type ipsetReader struct {
	kind    string
	netmask int // that addresses are cut to before they are looked up, 0 for none
	trouble error
}

func (r *ipsetReader) message(body []byte, set *path.Set) {
	for a := (attributes{rest: body}); a.next(); {
		switch a.kind {
		case ipsetAttrType:
			r.kind = string(a.text())
			if !strings.HasPrefix(r.kind, "hash:ip") && !strings.HasPrefix(r.kind, "hash:net") {
				r.trouble = errSetType
			}
		case ipsetAttrData:
			for h := (attributes{rest: a.data}); h.next(); {
				if h.kind == ipsetAttrNetmask && len(h.data) == 1 {
					r.netmask = int(h.data[0])
				}
			}
		case ipsetAttrElements:
			for e := (attributes{rest: a.data}); e.next(); {
				p, ok := r.element(e.data)
				if !ok {
					r.trouble = errSetType
					continue
				}
				set.Prefixes = append(set.Prefixes, p)
			}
		}
	}
}

func (r *ipsetReader) element(body []byte) (netip.Prefix, bool) {
	var addr netip.Addr
	length := -1
	ok := true
	for a := (attributes{rest: body}); a.next(); {
		switch a.kind {
		case ipsetAttrIP:
			for in := (attributes{rest: a.data}); in.next(); {
				addr, _ = netip.AddrFromSlice(in.data)
			}
		case ipsetAttrCidr:
			if len(a.data) == 1 {
				length = int(a.data[0])
			}
		case ipsetAttrIPTo:
			ok = false
		case ipsetAttrFlags:
			ok = ok && a.uint32()&ipsetNoMatch == 0
		}
	}
	switch {
	case !addr.IsValid():
		return netip.Prefix{}, false
	case length < 0 && r.netmask > 0:
		length = r.netmask
	case length < 0:
		length = addr.BitLen()
	}
	p, err := addr.Prefix(length)
	return p, ok && err == nil
}

// ipsetRequest builds a message to ipset.
func ipsetRequest(command, flags uint16, attr []byte) []byte {
	b := make([]byte, headerLen, 128)
	binary.NativeEndian.PutUint16(b[4:], unix.NFNL_SUBSYS_IPSET<<8|command)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	b = append(b, unix.NFPROTO_IPV4, 0, 0, 0)
	b = append(b, ipsetAttr(ipsetAttrProtocol, []byte{ipsetProtocol})...)
	b = append(b, attr...)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return b
}

func ipsetAttr(kind uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(data)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), data...)
	return append(b, make([]byte, align(len(data))-len(data))...)
}
