package apply

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"flanwatch/remediate"
)

// largest bounds a receipt that is read.
const largest = 256 << 20

// Store keeps backups and receipts in the state directory: folders 0700, files 0600, no link followed, all on disk before
// anything depends on it.
type Store struct{ dir string }

// NewStore keeps things below the state directory, which is made when it is first written to.
func NewStore(dir string) *Store { return &Store{dir} }

func (s *Store) backupPath(id string) string { return filepath.Join(s.dir, "backup", id+".rules") }

func (s *Store) writeBackup(id, text string) error {
	return s.write("backup", id+".rules", []byte(text))
}

// Begin writes a receipt for the first time, and once more in its own place: a disk that has no room for both, which is what
// the last words will take, is found out before anything is changed.
func (s *Store) Begin(r remediate.Receipt) error {
	if err := s.Put(r); err != nil {
		return err
	}
	const lastWords = 8 << 10
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write receipt: %w", err)
	}
	return s.write("receipts", r.ID+".json", append(data, bytes.Repeat([]byte(" "), lastWords)...))
}

// Put writes a receipt, in place of an earlier state of the same one, and notes how far the plan came.
func (s *Store) Put(r remediate.Receipt) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write receipt: %w", err)
	}
	if err := s.write("receipts", r.ID+".json", data); err != nil {
		return err
	}
	_ = s.Note(r.Action()) // the receipt is what counts; a full disk must not make a change look undone
	return nil
}

// write puts a whole file in its place, on disk.
func (s *Store) write(folder, name string, data []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", filepath.Join(s.dir, folder, name), err)
		}
	}()
	dir, err := s.open(folder, true)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	temporary := name + ".new"
	if err := unix.Unlinkat(dir, temporary, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	fd, err := unix.Openat(dir, temporary, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, unix.Unlinkat(dir, temporary, 0))
	}
	if err := unix.Renameat(dir, temporary, dir, name); err != nil {
		return err
	}
	return unix.Fsync(dir)
}

// open opens a folder of the state directory. One that others may write to is not trusted.
func (s *Store) open(folder string, create bool) (int, error) {
	if create {
		if err := os.MkdirAll(filepath.Dir(s.dir), 0o755); err != nil {
			return -1, err
		}
		if err := unix.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, err
		}
	}
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	top, err := unix.Open(s.dir, flags, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(top)
	if err := ours(top); err != nil {
		return -1, err
	}
	if create {
		if err := unix.Mkdirat(top, folder, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, err
		}
	}
	dir, err := unix.Openat(top, folder, flags, 0)
	if err != nil {
		return -1, err
	}
	if err := ours(dir); err != nil {
		return -1, errors.Join(err, unix.Close(dir))
	}
	return dir, nil
}

func ours(dir int) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return errors.New("the folder is not ours alone to write")
	}
	return nil
}

// Get reads one receipt.
func (s *Store) Get(id string) (remediate.Receipt, error) {
	var r remediate.Receipt
	data, err := s.read(id)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read receipt %s: %w", id, err)
	}
	return r, nil
}

// Undone tells whether a plan was taken back since: then nothing of it is to be found again.
func (s *Store) Undone(id string) bool {
	r, err := s.Get(id)
	return err == nil && r.Result == remediate.ResultUndone
}

func (s *Store) read(id string) ([]byte, error) {
	if strings.ContainsAny(id, "/\x00") || id == "" {
		return nil, errors.New("no such name is given to receipts")
	}
	dir, err := s.open("receipts", false)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, id+".json", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), id)
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, largest))
}

// List gives all receipts, the newest first. Those that cannot be read are told apart in the error.
func (s *Store) List() ([]remediate.Receipt, error) {
	dir, err := s.open("receipts", false)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list receipts: %w", err)
	}
	f := os.NewFile(uintptr(dir), "receipts")
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list receipts: %w", err)
	}
	slices.Sort(names)
	var out []remediate.Receipt
	var errs []error
	for _, name := range slices.Backward(names) {
		id, ok := strings.CutSuffix(name, ".json")
		if !ok {
			continue
		}
		r, err := s.Get(id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, r)
	}
	return out, errors.Join(errs...)
}
