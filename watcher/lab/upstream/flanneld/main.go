// Command flanneld runs the traffic manager of real Flannel, and nothing else of it, in the network namespace it is
// started in: it writes Flannel's rules as the released version does and repairs them until it is told to end. Tests build
// it under the name flanneld, so that it also looks like the real process.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/flannel-io/flannel/pkg/trafficmngr"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
	"github.com/flannel-io/flannel/pkg/trafficmngr/nftables"
)

type config struct {
	network, subnet, network6, subnet6 string
	native                             bool
	resync                             int
}

func main() {
	var c config
	flag.StringVar(&c.network, "network", "", "IPv4 pod network")
	flag.StringVar(&c.subnet, "subnet", "", "IPv4 pod subnet of this node")
	flag.StringVar(&c.network6, "network6", "", "IPv6 pod network")
	flag.StringVar(&c.subnet6, "subnet6", "", "IPv6 pod subnet of this node")
	flag.BoolVar(&c.native, "native", false, "native nftables mode")
	flag.IntVar(&c.resync, "iptables-resync", 5, "repair period, seconds")
	flag.Bool("ip-masq", false, "accepted, as by flanneld; this program always masquerades")
	flag.Bool("kube-subnet-mgr", false, "accepted, as by flanneld")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, c); err != nil {
		fmt.Fprintln(os.Stderr, "flanneld:", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	<-ctx.Done()
}

// run sets the rules up in flanneld's order: the other dialect's are cleaned away first.
func run(ctx context.Context, c config) error {
	var ours, other trafficmngr.TrafficManager = &iptables.IPTablesManager{}, &nftables.NFTablesManager{}
	if c.native {
		ours, other = other, ours
	}
	if err := other.CleanUp(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "clean up the other dialect:", err)
	}
	if err := ours.Init(ctx); err != nil {
		return fmt.Errorf("init: %w", err)
	}
	l := &lease.Lease{EnableIPv4: c.network != "", EnableIPv6: c.network6 != ""}
	net4, net6 := ip4(c.network), ip6(c.network6)
	l.Subnet, l.IPv6Subnet = ip4(c.subnet), ip6(c.subnet6)
	// The previous network and subnet are given as the present ones, as after an ordinary restart.
	err := ours.SetupAndEnsureMasqRules(ctx, net4, l.Subnet, net4, net6, l.IPv6Subnet, net6, l, c.resync, false)
	if err != nil {
		return fmt.Errorf("set up masquerade rules: %w", err)
	}
	ours.SetupAndEnsureForwardRules(ctx, net4, net6, c.resync)
	return nil
}

func ip4(s string) ip.IP4Net {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return ip.IP4Net{}
	}
	return ip.IP4Net{IP: ip.FromBytes(p.Masked().Addr().AsSlice()), PrefixLen: uint(p.Bits())}
}

func ip6(s string) ip.IP6Net {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return ip.IP6Net{}
	}
	return ip.IP6Net{IP: ip.FromIP16Bytes(p.Masked().Addr().AsSlice()), PrefixLen: uint(p.Bits())}
}
