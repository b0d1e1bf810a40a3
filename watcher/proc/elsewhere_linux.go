package proc

import (
	"fmt"

	"flanwatch/flannel"
)

// Elsewhere tells whether the network namespace, in which the links must have been opened too, is evidently not
// the node's: there an empty ruleset proves nothing. The reason is one clause. It says false where nothing tells.
func (s *Scanner) Elsewhere(links *LinkReader) (reason string, elsewhere bool) {
	if s.node {
		return "", false // a kubelet or container runtime shares the namespace
	}
	switch same, err := s.withInit(links); {
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

// withInit tells whether process 1 shares the namespace: by the name of its namespace or, where that cannot be read, by the
// mark of the links.
func (s *Scanner) withInit(links *LinkReader) (bool, error) {
	ns, err := s.fs.link("1/ns/net")
	if denied(err) {
		return s.fs.bears(1, links.mark)
	}
	return Namespace(ns) == s.ns, err
}

func (s *Scanner) init() string {
	comm, _ := s.fs.program(1)
	return flannel.Printable(comm)
}
