package proc

import (
	"encoding/binary"
	"time"
)

// eventKind is what happened to a process.
type eventKind uint32

// The events of the kernel's proc connector that matter here.
const (
	eventFork eventKind = 0x00000001
	eventExec eventKind = 0x00000002
	eventExit eventKind = 0x80000000
)

// event is one message of the proc connector. Numbers are those of the initial PID namespace.
type event struct {
	kind   eventKind
	at     time.Duration // monotonic clock
	pid    int
	parent int // of a fork
}

// Sizes in a message: netlink header, connector header (index, value, sequence, acknowledgement, length, flags), then the
// event: kind, processor, time, and what depends on the kind.
const (
	netlinkHeader   = 16
	connectorHeader = 20
	eventHeader     = 16
	eventOffset     = netlinkHeader + connectorHeader
)

// Connector address of the proc connector.
const (
	connectorIndex = 1
	connectorValue = 1
)

// parseEvent reads a message. It gives false for everything that is no fork, exec or exit of a whole process: threads are
// of no interest.
func parseEvent(b []byte) (event, bool) {
	order := binary.NativeEndian
	if len(b) < eventOffset+eventHeader+8 {
		return event{}, false
	}
	if order.Uint32(b[netlinkHeader:]) != connectorIndex || order.Uint32(b[netlinkHeader+4:]) != connectorValue {
		return event{}, false
	}
	b = b[eventOffset:]
	e := event{kind: eventKind(order.Uint32(b)), at: time.Duration(order.Uint64(b[8:]))}
	b = b[eventHeader:]
	pid, tgid := order.Uint32(b), order.Uint32(b[4:])
	switch e.kind {
	case eventExec:
	case eventExit:
		if pid != tgid {
			return event{}, false
		}
	case eventFork:
		if len(b) < 16 {
			return event{}, false
		}
		e.parent = int(tgid)
		pid, tgid = order.Uint32(b[8:]), order.Uint32(b[12:])
		if pid != tgid {
			return event{}, false
		}
	default:
		return event{}, false
	}
	e.pid = int(tgid)
	return e, e.at >= 0
}
