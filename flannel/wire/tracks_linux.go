package wire

import (
	"bytes"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
)

// Tracks tells whether a rule makes the kernel track connections: what follows is the payload of NFTA_RULE_EXPRESSIONS. A
// list that is malformed is taken for one that does.
func Tracks(exprs []byte) bool {
	for b := exprs; len(b) > 0; {
		e, rest, err := cutExpr(b)
		if err != nil {
			return true
		}
		switch string(e.name) {
		case "ct", "nat", "masq", "redir", "connlimit", "synproxy", "flow_offload", "objref":
			return true // an object may be a helper or a time-out of connections
		case "match", "target":
			if flannel.TracksConnections(extensionName(e.data)) {
				return true
			}
		}
		b = rest
	}
	return false
}

// extensionName is the name of a match or target of x_tables; both have it in their first attribute.
func extensionName(data []byte) string {
	for len(data) > 0 {
		a, rest, err := cut(data)
		if err != nil {
			return ""
		}
		if a.kind == unix.NFTA_MATCH_NAME { // NFTA_TARGET_NAME is the same number
			name, _, _ := bytes.Cut(a.data, []byte{0})
			return string(name)
		}
		data = rest
	}
	return ""
}
