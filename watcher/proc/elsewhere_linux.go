package proc

import (
	"bytes"
	"errors"
	"fmt"

	"flanwatch/flannel"
)

// Elsewhere tells whether the calling thread's network namespace, which the scanner and links look at, is evidently not
// the node's: there an empty ruleset proves nothing. The reason is one clause. It says false where nothing tells.
func (s *Scanner) Elsewhere(links *LinkReader) (reason string, elsewhere bool) {
	if s.node {
		return "", false // a kubelet or container runtime shares the namespace
	}
	switch same, err := s.withInit(); {
	case err == nil && !same:
		return fmt.Sprintf("process 1 (%s) lives in another network namespace", s.init()), true
	case err == nil && !s.view.own:
		return "", false
	}
	if name, pod := links.Uplink(); pod {
		return "its way out is the veth " + flannel.Printable(name) + " and it has no bridge for pods, as in a pod", true
	}
	return "", false
}

// withInit tells whether process 1 shares the namespace: by the name of its namespace or, where that cannot be read, by
// its interfaces, addresses and routes, which anybody may see.
func (s *Scanner) withInit() (bool, error) {
	ns, err := s.fs.link("1/ns/net")
	if err == nil {
		return Namespace(ns) == s.ns, nil
	}
	if !denied(err) {
		return false, err
	}
	for _, look := range []struct {
		file  string
		parse func([]byte) []byte
	}{{"dev", linkNames}, {"if_inet6", bytes.Clone}, {"route", bytes.Clone}} {
		ours, err1 := s.fs.read("thread-self/net/"+look.file, make([]byte, maxCmdline))
		inits, err2 := s.fs.read("1/net/"+look.file, make([]byte, maxCmdline))
		if gone(err1) && gone(err2) {
			continue // no IPv6 in this kernel
		}
		if err := errors.Join(err1, err2); err != nil {
			return false, err
		}
		if !bytes.Equal(look.parse(ours), look.parse(inits)) {
			return false, nil
		}
	}
	return true, nil
}

func (s *Scanner) init() string {
	comm, _ := s.fs.program(1)
	return flannel.Printable(comm)
}
