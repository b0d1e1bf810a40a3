package probe

import (
	"strings"
	"testing"
)

func TestParseAndStringAreInverse(t *testing.T) {
	for _, text := range []string{"tcp://192.0.2.1:80", "udp://192.0.2.1:53", "icmp://192.0.2.1", "tcp://[2001:db8::1]:443", "icmp://[2001:db8::1]"} {
		got, err := Parse(text)
		if err != nil || got.String() != text {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

func TestWhatIsNoTargetIsAnErrorThatShowsIt(t *testing.T) {
	for _, text := range []string{
		"", "192.0.2.1:80", "http://192.0.2.1:80", "tcp://192.0.2.1", "tcp://192.0.2.1:0", "tcp://192.0.2.1:70000", "tcp://name:80",
		"icmp://192.0.2.1:8", "tcp://192.0.2.1:80/path", "tcp://user@192.0.2.1:80",
	} {
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), "probe") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("tcp://192.0.2.1:80")
	f.Add("icmp://[2001:db8::1%eth0]")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Parse(text)
		if err != nil {
			return
		}
		if b, err := Parse(a.String()); err == nil && a != b {
			t.Errorf("%q is %v, then %v", text, a, b)
		}
	})
}
