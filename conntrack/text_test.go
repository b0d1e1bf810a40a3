package conntrack

import (
	"encoding/json"
	"testing"
)

func TestAFlowIsKeptInFewBytesAndReadAsItWas(t *testing.T) {
	var whole1 Flow
	if err := Decode(whole(), &whole1); err != nil {
		t.Fatal(err)
	}
	ping := flow(ICMPv6, "fd00:244::5", "2001:db8::80", "2001:db8::80", "fd00:244::5", SeenReply)
	ping.Orig.ID, ping.Orig.Type, ping.Reply.Type, ping.ZoneReply, ping.Zone = 7, 128, 129, true, 3
	for _, f := range []Flow{whole1, bareFlow, ping} {
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var got Flow
		if err := json.Unmarshal(text, &got); err != nil || got != f {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", text, err, got, f)
		}
		if len(text) > 150 {
			t.Errorf("%d bytes: %s", len(text), text)
		}
	}
}

func FuzzFlowText(f *testing.F) {
	f.Add("10.244.1.5 192.0.2.80 192.0.2.80 10.244.1.5 6 40000 80 80 40000 2 3 77")
	f.Add("::1%eth0 ::1 ::1 ::1")
	f.Fuzz(func(t *testing.T, text string) {
		var a, b Flow
		if a.UnmarshalText([]byte(text)) != nil {
			return
		}
		out, err := a.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		if err := b.UnmarshalText(out); err != nil || a != b {
			t.Errorf("%q: %v, %+v, want %+v", out, err, b, a)
		}
	})
}
