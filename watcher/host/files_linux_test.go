package host

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// resolvers are both ways to find a file inside a root; they must not differ.
var resolvers = map[string]func(int, string) (int, error){"openat2": openat2, "walk": walk}

// tree is a root beside a secret that must never be read.
func tree(t testing.TB) (root string) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "secret", "secret")
	root = filepath.Join(dir, "root")
	write(t, root, "run/flannel/subnet.env", "inside")
	write(t, root, "secret", "decoy")
	write(t, root, "a/b/c/file", "deep")
	for link, target := range map[string]string{
		"var/run":        "/run",         // absolute, as on every distribution
		"etc/escape":     "../../secret", // would leave the root
		"etc/far":        "../../../../../../../../secret",
		"etc/absolute":   "/secret",          // another file inside and outside
		"etc/chain":      "chain2",           //
		"etc/chain2":     "/var/run/flannel", //
		"etc/loop":       "loop2",            //
		"etc/loop2":      "loop",             //
		"etc/dangling":   "/nowhere",         //
		"etc/self":       "/proc/self/exe",   //
		"a/b/up":         "../../run",        //
		"etc/dir/..data": "..2026",           // as in a ConfigMap volume
		"etc/dir/conf":   "..data/conf",      //
	} {
		link = filepath.Join(root, link)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	write(t, root, "etc/dir/..2026/conf", "volume")
	return root
}

func TestFilesStayInsideTheirRoot(t *testing.T) {
	root := tree(t)
	for name, c := range map[string]struct {
		path, want string
		err        error
	}{
		"a plain path":                       {"/run/flannel/subnet.env", "inside", nil},
		"a path without a leading slash":     {"run/flannel/subnet.env", "inside", nil},
		"an absolute link on the way":        {"/var/run/flannel/subnet.env", "inside", nil},
		"links one after the other":          {"/etc/chain/subnet.env", "inside", nil},
		"dots that stay inside":              {"/a/b/../b/./c//file", "deep", nil},
		"dots that would leave":              {"/../../../secret", "decoy", nil},
		"dots after a link":                  {"/a/b/up/../secret", "decoy", nil},
		"a link that would leave":            {"/etc/escape", "decoy", nil},
		"a link that would leave by far":     {"/etc/far", "decoy", nil},
		"an absolute link to a file":         {"/etc/absolute", "decoy", nil},
		"a volume of a ConfigMap":            {"/etc/dir/conf", "volume", nil},
		"a loop of links":                    {"/etc/loop", "", unix.ELOOP},
		"a link to nowhere":                  {"/etc/dangling", "", unix.ENOENT},
		"a link to a process, which is none": {"/etc/self", "", unix.ENOENT},
		"a file that is not there":           {"/run/flannel/other", "", unix.ENOENT},
		"a file used as a directory":         {"/secret/x", "", unix.ENOTDIR},
		"a directory":                        {"/run", "", ErrNotRegular},
		"nothing at all":                     {"/", "", ErrNotRegular},
	} {
		for kind, open := range resolvers {
			t.Run(name+" by "+kind, func(t *testing.T) {
				f := openRoot(t, root)
				f.open = open
				got, _, err := f.ReadFile(c.path, 100)
				if string(got) != c.want || !errors.Is(err, c.err) {
					t.Errorf("ReadFile(%s) = %q, %v; want %q, %v", c.path, got, err, c.want, c.err)
				}
			})
		}
	}
}

func TestFilesFollowNoMagicLink(t *testing.T) {
	f := openRoot(t, "/proc/self")
	for kind, open := range resolvers {
		f.open = open
		for _, name := range []string{"exe", "root/etc/passwd", "cwd/go.mod", "fd/0"} {
			if b, _, err := f.ReadFile(name, 1<<20); err == nil {
				t.Errorf("%s: %s led out of the root: %d bytes", kind, name, len(b))
			}
		}
	}
}

func TestFilesReadOrdinaryFilesOnly(t *testing.T) {
	root := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(root, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sock)
	if err := unix.Bind(sock, &unix.SockaddrUnix{Name: filepath.Join(root, "socket")}); err != nil {
		t.Fatal(err)
	}
	names := []string{"pipe", "socket"}
	if unix.Mknod(filepath.Join(root, "device"), unix.S_IFCHR|0o600, 1<<8|5) == nil { // /dev/zero
		names = append(names, "device")
	}
	f := openRoot(t, root)
	for _, name := range names {
		done := make(chan error, 1)
		go func() {
			_, _, err := f.ReadFile(name, 100)
			done <- err
		}()
		select {
		case err := <-done:
			if !errors.Is(err, ErrNotRegular) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("reading a %s waits", name)
		}
	}
}

func TestFilesAreBounded(t *testing.T) {
	root := t.TempDir()
	write(t, root, "right", strings.Repeat("x", 100))
	write(t, root, "long", strings.Repeat("x", 101))
	write(t, root, "huge", "")
	if err := os.Truncate(filepath.Join(root, "huge"), 1<<40); err != nil {
		t.Fatal(err)
	}
	f := openRoot(t, root)
	if b, _, err := f.ReadFile("right", 100); err != nil || len(b) != 100 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	for _, name := range []string{"long", "huge"} {
		if _, _, err := f.ReadFile(name, 100); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Its size is told as 0.
	if _, _, err := openRoot(t, "/proc").ReadFile("cpuinfo", 10); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a file without a size: %v", err)
	}
}

func TestFilesTellWhenAFileWasWritten(t *testing.T) {
	root := t.TempDir()
	write(t, root, "old", "x")
	then := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	if err := os.Chtimes(filepath.Join(root, "old"), then, then); err != nil {
		t.Fatal(err)
	}
	if _, written, err := openRoot(t, root).ReadFile("old", 10); err != nil || !written.Equal(then) {
		t.Errorf("written %v, %v", written, err)
	}
}

func TestErrorsNameFileAndCause(t *testing.T) {
	_, _, err := openRoot(t, t.TempDir()).ReadFile("/run/flannel/subnet.env", 10)
	if want := "read /run/flannel/subnet.env: no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}

func TestGlob(t *testing.T) {
	root := tree(t)
	write(t, root, "pods/1/volumes/kubernetes.io~configmap/cfg/net-conf.json", "{}")
	write(t, root, "pods/1/volumes/kubernetes.io~configmap/other/x", "")
	write(t, root, "pods/2/volumes/kubernetes.io~configmap/cfg/net-conf.json", "{}")
	write(t, root, "pods/3/volumes/kubernetes.io~secret/cfg/net-conf.json", "{}")
	write(t, root, "pods/file", "")
	f := openRoot(t, root)
	for kind, open := range resolvers {
		f.open = open
		for pattern, want := range map[string][]string{
			"/pods/*/volumes/kubernetes.io~configmap/*/net-conf.json": {
				"/pods/1/volumes/kubernetes.io~configmap/cfg/net-conf.json",
				"/pods/2/volumes/kubernetes.io~configmap/cfg/net-conf.json",
			},
			"/etc/chain/*.env": {"/etc/chain/subnet.env"},
			"/nowhere/*":       nil,
			"/run/flannel":     {"/run/flannel"},
		} {
			if got := f.Glob(pattern, 100); !slices.Equal(got, want) {
				t.Errorf("%s: Glob(%s) = %q, want %q", kind, pattern, got, want)
			}
		}
	}
	if got := f.Glob("/pods/*", 2); len(got) != 2 {
		t.Errorf("unbounded: %q", got)
	}
	if got, err := f.ReadDir("/pods", 10); err != nil || !slices.Equal(got, []string{"1", "2", "3", "file"}) {
		t.Errorf("ReadDir = %q, %v", got, err)
	}
	if _, err := f.ReadDir("/pods/file", 10); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("ReadDir of a file: %v", err)
	}
}

func TestNoDescriptorIsLeftOpen(t *testing.T) {
	f := openRoot(t, tree(t))
	count := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	before := count()
	for _, open := range resolvers {
		f.open = open
		for _, name := range []string{"/a/b/c/file", "/etc/loop", "/etc/chain/subnet.env", "/a/b/up/../secret", "/secret/x", "/run"} {
			_, _, _ = f.ReadFile(name, 100)
			_ = f.exists(name)
		}
		f.Glob("/a/*/c", 10)
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func FuzzResolversAgree(f *testing.F) {
	for _, name := range []string{
		"/run/flannel/subnet.env", "../../secret", "etc/chain/../..", "a/b/up/flannel", "etc/self", "etc/loop/x", "a//b/./c/..", "secret/.", "secret/../secret", "",
	} {
		f.Add(name)
	}
	root := tree(f)
	files, err := OpenRoot(root)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name string) {
		// A trailing slash asks the kernel for a directory, and an empty name is an error there.
		if strings.ContainsRune(name, 0) || strings.HasSuffix(name, "/") || name == "" || len(name) > 1000 ||
			slices.ContainsFunc(strings.Split(name, "/"), func(e string) bool { return len(e) > 255 }) {
			return
		}
		a, aerr := openat2(int(files.root.Fd()), name)
		b, berr := walk(int(files.root.Fd()), name)
		if !errors.Is(aerr, berr) || (aerr == nil) != (berr == nil) {
			t.Fatalf("%q: openat2 %v, walk %v", name, aerr, berr)
		}
		if aerr != nil {
			return
		}
		defer unix.Close(a)
		defer unix.Close(b)
		var sa, sb unix.Stat_t
		if unix.Fstat(a, &sa) != nil || unix.Fstat(b, &sb) != nil || sa.Ino != sb.Ino || sa.Dev != sb.Dev {
			t.Fatalf("%q: openat2 and walk find different files", name)
		}
	})
}
