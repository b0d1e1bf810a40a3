package legacy

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// buffer is memory that the kernel copies tables into, of which all but a part at the front can be closed off: the kernel
// stops copying there. Closed memory must not be touched, so only open gives access.
type buffer struct {
	mem  []byte
	open int // bytes that can be accessed, whole pages
}

// kept is how much memory stays in use when it is closed off: getting it back page by page costs more than the copying.
const kept = 16 << 20

// reserve makes room for n bytes, all of them open.
func (b *buffer) reserve(n int) error {
	if n <= len(b.mem) {
		return b.limit(len(b.mem))
	}
	if err := b.free(); err != nil {
		return err
	}
	mem, err := unix.Mmap(-1, 0, pages(n+n/8), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("map %d bytes: %w", n, err)
	}
	b.mem, b.open = mem, len(mem)
	return nil
}

// limit closes all but the pages that hold the first n bytes, and gives back what goes beyond kept.
func (b *buffer) limit(n int) error {
	n = min(pages(n), len(b.mem))
	switch {
	case n < b.open:
		if err := unix.Mprotect(b.mem[n:b.open], unix.PROT_NONE); err != nil {
			return fmt.Errorf("close memory: %w", err)
		}
		idle := b.mem[min(max(n, kept), b.open):b.open]
		b.open = n
		if len(idle) == 0 {
			return nil
		}
		if err := unix.Madvise(idle, unix.MADV_DONTNEED); err != nil {
			return fmt.Errorf("give memory back: %w", err)
		}
	case n > b.open:
		if err := unix.Mprotect(b.mem[b.open:n], unix.PROT_READ|unix.PROT_WRITE); err != nil {
			return fmt.Errorf("open memory: %w", err)
		}
		b.open = n
	}
	return nil
}

func (b *buffer) free() error {
	if b.mem == nil {
		return nil
	}
	mem := b.mem
	b.mem, b.open = nil, 0
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("unmap: %w", err)
	}
	return nil
}

func pages(n int) int {
	size := os.Getpagesize()
	return (n + size - 1) / size * size
}
