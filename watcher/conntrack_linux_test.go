package watcher_test

import (
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
)

// podOf gives a node an uplink that leads nowhere and a pod, 10.244.1.5.
func podOf(t *testing.T, n *labtest.Namespace) *labtest.Namespace {
	t.Helper()
	pod := labtest.New(t)
	sleep := exec.Command("sleep", "600") // a process for ip to find the namespace by
	if err := pod.Start(sleep); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}()
	n.Must("ip link add vpod type veth peer name eth0 netns " + strconv.Itoa(sleep.Process.Pid))
	n.Shell(`
		ip link add up0 type bridge
		for d in up0 vpod; do ip link set $d up; done
		ip addr add 10.244.1.1/24 dev vpod
		ip addr add 192.168.60.11/24 dev up0
		ip route add default via 192.168.60.1
		ip neigh add 192.168.60.1 lladdr 02:00:00:00:00:01 dev up0
		mkdir -p /run/flannel
		echo 1 > /proc/sys/net/ipv4/ip_forward`)
	n.Feed("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPMASQ=true\n", "tee", "/run/flannel/subnet.env")
	n.Must("iptables-nft -t mangle -A POSTROUTING -m conntrack --ctstate INVALID -j DROP") // as others have: keeps tracking on
	pod.Shell(`
		ip addr add 10.244.1.5/24 dev eth0
		ip link set eth0 up
		ip route add default via 10.244.1.1`)
	return pod
}

func sendFrom(t *testing.T, pod *labtest.Namespace, port int) {
	t.Helper()
	err := pod.Do(func() error {
		c, err := net.DialUDP("udp", &net.UDPAddr{Port: port}, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 80), Port: 9})
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// subscribed tells whether somebody listens for new connections in a namespace.
func subscribed(n *labtest.Namespace) bool {
	const newConnections = 1 // NFNLGRP_CONNTRACK_NEW, as a bit of the groups
	for line := range strings.Lines(n.Must("cat /proc/thread-self/net/netlink")) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[1] == "12" {
			if groups, err := strconv.ParseUint(fields[3], 16, 64); err == nil && groups&newConnections != 0 {
				return true
			}
		}
	}
	return false
}

func TestABareConnectionIsListedWithItsBirthInTheGapAndNobodyListensUnasked(t *testing.T) {
	n := labtest.New(t)
	pod := podOf(t, n)
	n.Feed(rules, "iptables-nft-restore")
	sendFrom(t, pod, 39999) // long before, masqueraded
	w, r := start(t, optionsOf(n))
	r.find(t, "the counters", func(o incident.Observation) bool {
		return o.Table != nil && o.Table.State == flannel.Known && o.Table.Value.Count.N > 0
	})
	r.find(t, "the node", func(o incident.Observation) bool { return o.Node != nil && o.Node.Networks.State == flannel.Known })
	if subscribed(n) {
		t.Error("somebody listens unasked")
	}
	w.WantFlows(&incident.FlowsWanted{Listen: true, Often: true, Masquerade: map[flannel.Family]bool{flannel.IPv4: true}})
	r.find(t, "a first look", func(o incident.Observation) bool { return o.Flows != nil })
	if !subscribed(n) {
		t.Error("nobody listens")
	}

	n.Must("iptables-nft -t nat -F FLANNEL-POSTRTG")
	flushed := w.Now()
	sendFrom(t, pod, 40000)
	n.Feed(rules, "iptables-nft-restore")
	repaired := w.Now()
	sendFrom(t, pod, 40000)
	sendFrom(t, pod, 40001)

	look := r.find(t, "the bare connection", func(o incident.Observation) bool {
		return o.Flows != nil && o.Flows.Value.Kinds[conntrack.Bare].Flows > 0
	})
	list := look.Flows.Value.Flows
	if len(list) != 1 || list[0].Flow.Orig.SPort != 40000 {
		t.Fatalf("listed %+v", list)
	}
	born := list[0].Born
	if born.IsZero() || born.Sub(flushed) < 0 || repaired.Sub(born) < 0 {
		t.Errorf("born at %v, the gap was from %v to %v", born.Boot, flushed.Boot, repaired.Boot)
	}

	w.WantFlows(nil)
	for end := time.Now().Add(5 * time.Second); subscribed(n); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("somebody listens still")
		}
	}
}

func TestOf100000ConnectionsAllThatBeganBareAreCountedAndListed(t *testing.T) {
	n := labtest.New(t)
	pod := podOf(t, n)
	n.Feed(rules, "iptables-nft-restore")
	n.Must("iptables-nft -t nat -I FLANNEL-POSTRTG -p udp --sport 7 -j ACCEPT") // these stay bare
	w, r := start(t, optionsOf(n))
	r.find(t, "the node", func(o incident.Observation) bool { return o.Node != nil && o.Node.Networks.State == flannel.Known })
	w.WantFlows(&incident.FlowsWanted{Listen: true, Often: true, Masquerade: map[flannel.Family]bool{flannel.IPv4: true}})
	r.find(t, "a first look", func(o incident.Observation) bool { return o.Flows != nil })
	const each, bare = 100, 1000
	for i := range bare {
		flood(t, pod, 2000+i%2, 10000+i/2*each, each-1)
		flood(t, pod, 7, 1000+i, 1)
	}
	look := r.find(t, "all of them", func(o incident.Observation) bool {
		return o.Flows != nil && o.Flows.Value.Kinds[conntrack.Bare].Flows == bare
	})
	v := look.Flows.Value
	var born, alive uint64
	for _, c := range v.Births.Cohorts {
		born, alive = born+c.Born, alive+c.Alive
	}
	heard := 0
	for _, s := range v.Flows {
		if s.Kind == conntrack.Bare && !s.Born.IsZero() {
			heard++
		}
	}
	if born != bare || alive != bare || heard != bare || v.Births.Lost != 0 || v.Entries < 100_000 {
		t.Errorf("born %d, alive %d, listed with their birth %d of %d; %d losses, %d entries", born, alive, heard, bare, v.Births.Lost, v.Entries)
	}
}

// flood sends one datagram from a port of a pod to each of so many ports outside.
func flood(t *testing.T, pod *labtest.Namespace, sport, first, count int) {
	t.Helper()
	err := pod.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: sport}); err != nil {
			return err
		}
		for i := range count {
			if err := unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Port: first + i, Addr: [4]byte{192, 0, 2, 99}}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
