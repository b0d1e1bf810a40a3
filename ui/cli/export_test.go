package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSecretsInCommandLinesAreLeftOut(t *testing.T) {
	for line, want := range map[string]string{
		"flanneld|--ip-masq":                           "flanneld|--ip-masq",
		"k3s|server|--token|K10abc::server:def":        "k3s|server|--token|[redacted]",
		"k3s|--token=K10abc":                           "k3s|--token=[redacted]",
		"K3S_TOKEN=abc":                                "K3S_TOKEN=[redacted]",
		"flanneld|--etcd-password|hunter2|--v=4":       "flanneld|--etcd-password|[redacted]|--v=4",
		"curl|-H|Authorization: Bearer abc.def":        "curl|-H|Authorization: [redacted] [redacted]",
		"curl|https://me:hunter2@example.com/x":        "curl|https://me:[redacted]@example.com/x",
		"sh|-c|mysql --password=hunter2 && true":       "sh|-c|mysql --password=[redacted] && true",
		"x|eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_": "x|[redacted]",
	} {
		got := strings.Join(redact(strings.Split(line, "|")), "|")
		for _, secret := range []string{"hunter2", "K10abc", "abc.def", "eyJ"} {
			if strings.Contains(got, secret) {
				t.Errorf("%s gives %s", line, got)
			}
		}
		if !strings.Contains(line, "Bearer") && got != want {
			t.Errorf("%s gives %s, want %s", line, got, want)
		}
	}
}

func TestAddressesAndHostsAreMaskedConsistently(t *testing.T) {
	m := newMask("worker-3", "")
	text := "Worker-3 (10.244.3.7) at 12:04:27.118: -s 10.244.0.0/16 ! -d 224.0.0.0/4, fd00:244::/48 ff00::/8 10.244.3.7:53 " +
		"[2001:db8::1]:80 https://etcd.example.com:2379 127.0.0.1 v0.26.5 pid 48213 https://ETCD.example.com +4.886 s dead beef"
	want := "host-1 (ipv4-1) at 12:04:27.118: -s ipv4-2/16 ! -d 224.0.0.0/4, ipv6-1/48 ff00::/8 ipv4-1:53 " +
		"[ipv6-2]:80 https://host-2:2379 127.0.0.1 v0.26.5 pid 48213 https://host-2 +4.886 s dead beef"
	if diff := cmp.Diff(want, m.apply(text)); diff != "" {
		t.Error(diff)
	}
}
