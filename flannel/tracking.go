package flannel

// trackers are the matches and targets of x_tables whose use makes the kernel track connections.
var trackers = map[string]bool{
	"conntrack": true, "state": true, "connbytes": true, "connlabel": true, "connlimit": true, "connmark": true, "cluster": true,
	"helper": true, "MASQUERADE": true, "SNAT": true, "DNAT": true, "REDIRECT": true, "NETMAP": true, "CT": true, "CONNMARK": true,
	"CONNSECMARK": true, "SYNPROXY": true,
}

// TracksConnections tells whether a match or target of iptables, by its name, makes the kernel track connections in the
// family of the rule. Without any such rule the entries that are there are looked up by nobody.
func TracksConnections(extension string) bool { return trackers[extension] }
