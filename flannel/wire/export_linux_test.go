package wire

// DecodeCounting also tells how many expressions went into the rule.
var DecodeCounting = decode

// Element is an expression with these bytes for its data.
func Element(name string, data []byte) []byte {
	var e encoder
	e.expr(name, func() { e.buf = append(e.buf, data...) })
	return e.buf
}

// EndsElement tells whether an expression of the list ends at this length, padding aside.
func EndsElement(list []byte, length int) bool {
	at := 0
	for at < length {
		a, _, err := cut(list[at:])
		if err != nil {
			return false
		}
		end := at + headerLen + len(a.data)
		if length >= end && length <= at+align(headerLen+len(a.data)) {
			return true
		}
		at += align(headerLen + len(a.data))
	}
	return false
}
