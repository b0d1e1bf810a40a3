package legacy

// span is where the rules of a chain lie in a table: from first up to last, which is the entry that ends the chain, a base
// chain's policy or a user-defined chain's implicit RETURN.
type span struct{ first, last int }

// baseChain finds a base chain from the offsets that the kernel gives with the table's size.
func (l *layout) baseChain(table []byte, first, policy uint32) (span, bool) {
	s := span{int(first), int(policy)}
	for off := s.first; off <= s.last; {
		e, ok := l.entry(table, off)
		if !ok {
			return span{}, false
		}
		if off == s.last {
			return s, true
		}
		off += len(e.raw)
	}
	return span{}, false
}

// userChain finds a user-defined chain. Complete is false if the table ended, or made no sense, before the chain was found
// whole or the end of all chains reached.
func (l *layout) userChain(table []byte, name string) (s span, found, complete bool) {
	for off := 0; ; {
		e, ok := l.entry(table, off)
		if !ok {
			return span{}, false, off == len(table)
		}
		off += len(e.raw)
		if opens(e, name) {
			s, ok := l.userRules(table, off)
			return s, ok, ok
		}
	}
}

func opens(e entry, name string) bool {
	got, ok := e.chainName()
	return ok && string(got) == name
}

// userRules goes from the first rule of a user-defined chain to the entry that opens the next one, or ends the table.
func (l *layout) userRules(table []byte, first int) (span, bool) {
	last := -1
	for off := first; ; {
		e, ok := l.entry(table, off)
		if !ok {
			return span{}, false
		}
		if _, next := e.chainName(); next {
			return span{first, last}, last >= first
		}
		last = off
		off += len(e.raw)
	}
}

// chainAt names the user-defined chain whose first rule lies at an offset, which is how a jump tells its aim.
func (l *layout) chainAt(table []byte, first int) ([]byte, bool) {
	e, ok := l.entry(table, first-l.headSize())
	if !ok || len(e.raw) != l.headSize() {
		return nil, false
	}
	return e.chainName()
}
