package probe

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ICMP messages, RFC 792 and RFC 4443.
const (
	echoRequest, echoReply   = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// ping sends one echo request of a new identifier, which is to conntrack what a port is, and waits for its answer.
func ping(addr netip.Addr) error {
	domain, protocol, request := unix.AF_INET, unix.IPPROTO_ICMP, byte(echoRequest)
	if addr.Is6() {
		domain, protocol, request = unix.AF_INET6, unix.IPPROTO_ICMPV6, echoRequest6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	id := uint16(rand.Uint32())
	message := []byte{request, 0, 0, 0, byte(id >> 8), byte(id), 0, 1}
	binary.BigEndian.PutUint16(message[2:], checksum(message)) // of ICMPv6 the kernel makes its own
	if err := unix.Sendto(fd, message, 0, sockaddr(addr)); err != nil {
		return os.NewSyscallError("send", err)
	}
	buf := make([]byte, 1500)
	for end := time.Now().Add(Patience); ; {
		left := unix.NsecToTimeval(max(time.Until(end), time.Microsecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &left); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		n, _, err := unix.Recvfrom(fd, buf, 0)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("receive", err)
		case answers(buf[:n], addr, id):
			return nil
		}
	}
}

// answers tells whether a message is the answer to the request with an identifier. Of IPv4 it begins with its IP header.
func answers(b []byte, addr netip.Addr, id uint16) bool {
	reply := byte(echoReply6)
	if addr.Is4() {
		reply = echoReply
		if len(b) < 20 {
			return false
		}
		b = b[min(int(b[0]&0xf)*4, len(b)):]
	}
	return len(b) >= 8 && b[0] == reply && binary.BigEndian.Uint16(b[4:]) == id
}

func sockaddr(addr netip.Addr) unix.Sockaddr {
	if addr.Is4() {
		return &unix.SockaddrInet4{Addr: addr.As4()}
	}
	return &unix.SockaddrInet6{Addr: addr.As16()}
}

// checksum is that of RFC 1071, over a message of even length.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
