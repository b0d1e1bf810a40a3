package diagnose

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"flanwatch/flannel"
)

// Surroundings is what decides, beside rules and Flannel's configuration, what becomes of pods' packets. It is read all the
// time; every part knows why it is missing.
type Surroundings struct {
	Settings []Setting                        // switches of the kernel in the watched namespace, by name
	Routing  flannel.Reading[Routing]         // bridges, pods, and the ways to other nodes
	Signs    flannel.Reading[[]Sign]          // chains and programs by which other parts of the node are known
	Lock     flannel.Reading[Lock]            // the lock of iptables-legacy; Absent while nobody holds it
	Counters flannel.Reading[[]Counter]       // packets that the kernel threw away, and why
	Tools    flannel.Reading[map[string]Tool] // programs of the node for packet filter and network, by name
}

// Setting is a switch below /proc/sys, by its name with dots.
type Setting struct {
	Name    string
	Value   flannel.Reading[string]
	Changed flannel.Time // when it was found to be another one than before; zero if it never was
}

// Setting gives a switch by its name; one that was not looked for is Unread.
func (s *Surroundings) Setting(name string) Setting {
	if i := slices.IndexFunc(s.Settings, func(x Setting) bool { return x.Name == name }); i >= 0 {
		return s.Settings[i]
	}
	return Setting{Name: name}
}

// Routing is what links, addresses, routes, neighbours and forwarding entries tell of pods and other nodes.
type Routing struct {
	Links  []Interface  // those that network plugins make, by name
	Uplink string       // link of the default route
	Out6   bool         // there is a default route of IPv6
	Pods   []netip.Addr // local ones: neighbours on cni0, and single addresses behind a link of a pod
	Ports  int          // pods' links that are plugged into cni0
	Peers  []Peer       // other nodes that something is missing for; bounded
	Whole  int          // other nodes that nothing is missing for
	Remote []netip.Prefix
	Holes  []Route // blackhole routes
	Routes []Route // to pods of other nodes, over Flannel's links or another node's address; bounded
}

// Interface is a link with its addresses.
type Interface struct {
	Name      string
	Type      string
	Addresses []netip.Prefix
	Port      int               // of a VXLAN: its UDP port
	Offload   flannel.ReadState // of a VXLAN: Known where the network card is left to write checksums
}

// Route is a route as far as it matters here.
type Route struct {
	To       netip.Prefix
	Via      netip.Addr // invalid if none
	Link     string
	Protocol string // who made it, as ip route says
}

// Peer is another node as Flannel's VXLAN link knows it. What is missing is false.
type Peer struct {
	Link      string
	Node      netip.Addr // its own address, from the forwarding entry
	Gateway   netip.Addr // of its tunnel, from the neighbour entry or the route
	Route     bool
	Neighbour bool
	Forward   bool
}

// Sign is something by which a part of the node is known.
type Sign struct {
	Owner string // "kubelet", "kube-proxy", "Calico", …
	What  string // "chain KUBE-SERVICES in iptables-nft ip nat", "kube-proxy[811] runs"
	Chain flannel.ChainID
}

// Lock is the lock of iptables-legacy while somebody holds it.
type Lock struct {
	PID   int
	Comm  string
	Since flannel.Time // when it was first found held by this process
}

// Counter is one of the kernel's counters of the namespace.
type Counter struct {
	Name  string // as nstat names it, "UdpInCsumErrors"
	Total uint64
	Rose  uint64        // by so much
	Over  time.Duration // in so long a time that we watched
}

// Tool is a program of the node.
type Tool struct {
	Path    string
	Version string // "" where nobody asked the program
}

// Remains is what was looked for in files, on demand: what a former Flannel left there, what comes back at the next boot,
// and what the network plugins wrote down.
type Remains struct {
	Files    []File        // of Flannel, that are there
	Saved    []SavedRules  // firewall files that hold rules of Flannel
	Configs  []CNIConfig   // network configurations, in the order in which the kubelet's runtime takes them
	Pools    []Pool        // addresses that host-local has reserved
	Ports    []HostPort    // ports of the node that were promised to pods
	Boot     []BootSetting // files that set one of the switches at boot
	Bounded  bool          // there was more than is kept
	Failures []string      // what could not be read
}

// File is one file or folder.
type File struct {
	Path    string
	Written time.Time
}

// SavedRules are lines of one file that is loaded into the packet filter at boot.
type SavedRules struct {
	Path  string
	Lines []int
	First string // the first of them
}

// CNIConfig is a configuration of the container network.
type CNIConfig struct {
	Path  string
	Name  string   // of the network
	Types []string // of the plugins, in order
}

// Flannels tells whether the configuration is for Flannel's plugin.
func (c CNIConfig) Flannels() bool { return slices.Contains(c.Types, "flannel") }

// Pool is a folder of reservations.
type Pool struct {
	Path     string
	Reserved int
	Alive    int // of these, by containers that run; meaningless unless Told
	Told     bool
	Stale    []string // addresses reserved by containers that do not run; bounded
}

// HostPort is a port of the node that leads to a pod.
type HostPort struct {
	Port     int
	Protocol string
	Pod      string
}

// BootSetting is a line that sets a switch at boot.
type BootSetting struct {
	Name, Value string
	Path        string
	Line        int
}

// Clone gives surroundings that share nothing with s.
func (s *Surroundings) Clone() Surroundings {
	c := *s
	c.Settings = slices.Clone(s.Settings)
	c.Routing.Value = s.Routing.Value.clone()
	c.Signs.Value = slices.Clone(s.Signs.Value)
	c.Counters.Value = slices.Clone(s.Counters.Value)
	c.Tools.Value = maps.Clone(s.Tools.Value)
	return c
}

func (r *Routing) clone() Routing {
	c := *r
	c.Links = slices.Clone(r.Links)
	for i := range c.Links {
		c.Links[i].Addresses = slices.Clone(c.Links[i].Addresses)
	}
	c.Pods, c.Remote, c.Peers = slices.Clone(r.Pods), slices.Clone(r.Remote), slices.Clone(r.Peers)
	c.Holes, c.Routes = slices.Clone(r.Holes), slices.Clone(r.Routes)
	return c
}

// Clone gives remains that share nothing with r.
func (r *Remains) Clone() Remains {
	c := *r
	c.Files, c.Ports, c.Boot, c.Failures = slices.Clone(r.Files), slices.Clone(r.Ports), slices.Clone(r.Boot), slices.Clone(r.Failures)
	c.Saved, c.Configs, c.Pools = slices.Clone(r.Saved), slices.Clone(r.Configs), slices.Clone(r.Pools)
	for i := range c.Saved {
		c.Saved[i].Lines = slices.Clone(c.Saved[i].Lines)
	}
	for i := range c.Configs {
		c.Configs[i].Types = slices.Clone(c.Configs[i].Types)
	}
	for i := range c.Pools {
		c.Pools[i].Stale = slices.Clone(c.Pools[i].Stale)
	}
	return c
}
