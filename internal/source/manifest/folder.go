package manifest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// maxFile is the size above which a file is not taken for a manifest.
const maxFile = 64 << 20

// grace is how long a file must be missing before it is taken for deleted.
// Editors put a file aside and write a new one, tools move it, and a folder
// that is removed loses its files one by one before it is gone itself.
const grace = 100 * time.Millisecond

// inode tells directories and files apart, whatever they are called.
type inode struct{ dev, ino uint64 }

func inodeOf(info fs.FileInfo) inode {
	st := info.Sys().(*syscall.Stat_t)
	return inode{uint64(st.Dev), st.Ino}
}

// fingerprint changes when a file does, nearly always: two writes within one
// tick of the clock can leave the same one.
type fingerprint struct {
	inode
	size  int64
	mtime time.Time
}

// file is a manifest file as it was last read.
type file struct {
	print fingerprint
	sum   [sha256.Size]byte
	last  reading
	// held are objects of earlier readings that stay in force, because the last
	// one was not whole and may have missed them.
	held []entry
	// missing is when the file was first not found; zero: it is there.
	missing time.Time
}

// folder is the memory of the files below a directory.
type folder struct {
	dir   string
	trim  *trimmer
	files map[string]*file // by slash-separated path below dir
	// troubles are directories that could not be listed in the last scan.
	troubles []Problem
	// pending says that a file is missing, and not yet for long.
	pending bool
}

func newFolder(dir string) *folder {
	return &folder{dir: filepath.Clean(dir), trim: newTrimmer(), files: map[string]*file{}}
}

// scan brings the memory up to date. It reads files that look changed and
// those in dirty, by full path. Before a directory is listed, enter is told of
// it, so that it can be watched and no change is missed in between; it may be
// nil. An error means that the folder itself cannot be read; nothing is
// forgotten then.
func (f *folder) scan(dirty map[string]bool, enter func(dir string, id inode)) error {
	w := &walk{dir: f.dir, enter: enter, found: map[string]fingerprint{}, seen: map[inode]bool{}}
	if err := w.list(""); err != nil {
		return err
	}
	// The folder may have gone while it was listed.
	if _, err := os.Stat(f.dir); err != nil {
		return err
	}
	f.troubles, f.pending = w.troubles, false
	for _, rel := range slices.Sorted(maps.Keys(w.found)) {
		full := filepath.Join(f.dir, filepath.FromSlash(rel))
		known := f.files[rel]
		if known == nil || known.print != w.found[rel] || dirty[full] || !known.missing.IsZero() {
			f.reload(rel, full, w.found[rel])
		}
	}
	for rel := range f.files {
		if _, there := w.found[rel]; !there && !w.hidden(rel) {
			f.miss(rel)
		}
	}
	return nil
}

// miss forgets a file that is not there, if it has not been there for a while.
func (f *folder) miss(rel string) {
	known := f.files[rel]
	switch {
	case known == nil:
	case known.missing.IsZero():
		known.missing = time.Now()
		f.pending = true
	case time.Since(known.missing) < grace:
		f.pending = true
	default:
		delete(f.files, rel)
	}
}

// reload reads one file. When that leaves gaps, what the file held before stays
// in force.
func (f *folder) reload(rel, full string, print fingerprint) {
	known := f.files[rel]
	data, err := readFile(full)
	if errors.Is(err, fs.ErrNotExist) {
		f.miss(rel)
		return
	}
	sum := sha256.Sum256(data)
	if known != nil && err == nil && known.sum == sum {
		known.print, known.missing = print, time.Time{}
		return
	}
	next := &file{print: print}
	switch {
	case err != nil:
		next.last.problems = []Problem{{File: rel, Reason: fmt.Sprintf("cannot be read: %v", bare(err))}}
	case len(data) == 0 && known != nil && len(known.inForce()) > 0:
		// This is how a file looks between being opened and being written.
		next.last.problems = []Problem{{
			File: rel, Reason: "is empty; its last objects stay in force until it is written again or removed",
		}}
	default:
		next.sum = sum
		next.last = read(rel, data, f.trim)
	}
	if known != nil && !next.last.whole {
		next.hold(known.inForce())
	}
	f.files[rel] = next
}

// inForce returns the objects of the last reading and those held.
func (f *file) inForce() []entry {
	return slices.Concat(f.last.entries, f.held)
}

// hold keeps the entries that the last reading does not have.
func (f *file) hold(before []entry) {
	have := map[objectID]bool{}
	for _, e := range f.last.entries {
		have[e.id] = true
	}
	for _, e := range before {
		if !have[e.id] {
			have[e.id] = true
			f.held = append(f.held, e)
		}
	}
}

// merged returns the objects in force and all problems, unsorted.
func (f *folder) merged() ([]entry, []Problem) {
	var readings []*reading
	var problems []Problem
	var missed, held []entry
	for _, rel := range slices.Sorted(maps.Keys(f.files)) {
		known := f.files[rel]
		problems = append(problems, known.last.problems...)
		held = append(held, known.held...)
		if known.missing.IsZero() {
			readings = append(readings, &known.last)
		} else {
			missed = append(missed, known.last.entries...)
		}
	}
	entries, twice := merge(readings)
	problems = slices.Concat(problems, twice, f.troubles)

	// An object that is held gives way to one that is really there, without a
	// word: it may have moved to another file. So does one of a missing file,
	// which was there a moment ago.
	have := map[objectID]bool{}
	for _, e := range entries {
		have[e.id] = true
	}
	for _, e := range slices.Concat(missed, held) {
		if !have[e.id] {
			have[e.id] = true
			entries = append(entries, e)
		}
	}
	return entries, append(problems, compare(entries)...)
}

// walk lists the manifest files below a directory.
type walk struct {
	dir      string
	enter    func(dir string, id inode)
	found    map[string]fingerprint
	seen     map[inode]bool // directories; symbolic links may lead round in circles
	closed   []string       // directories that could not be listed
	troubles []Problem
}

// list lists one directory, by its slash-separated path below the folder, and
// all below it. The error is that of the directory itself.
func (w *walk) list(rel string) error {
	full := filepath.Join(w.dir, filepath.FromSlash(rel))
	info, err := os.Stat(full)
	if err != nil {
		return err
	}
	id := inodeOf(info)
	if w.seen[id] {
		return nil
	}
	w.seen[id] = true
	if !info.IsDir() {
		return &fs.PathError{Op: "list", Path: full, Err: syscall.ENOTDIR}
	}
	if w.enter != nil {
		w.enter(full, id)
	}
	children, err := os.ReadDir(full)
	if err != nil {
		return err
	}
	for _, child := range children {
		w.child(path.Join(rel, child.Name()), filepath.Join(full, child.Name()))
	}
	return nil
}

func (w *walk) child(rel, full string) {
	name := path.Base(rel)
	if strings.HasPrefix(name, ".") {
		return
	}
	// Links are followed: the files of a ConfigMap volume are links.
	info, err := os.Stat(full)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil && isManifest(name):
		w.trouble(rel, err)
	case err != nil:
	case info.IsDir():
		if err := w.list(rel); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.trouble(rel, err)
		}
	case info.Mode().IsRegular() && isManifest(name):
		w.found[rel] = fingerprint{inodeOf(info), info.Size(), info.ModTime()}
	}
}

func (w *walk) trouble(rel string, err error) {
	w.closed = append(w.closed, rel)
	w.troubles = append(w.troubles, Problem{
		File: rel, Reason: fmt.Sprintf("cannot be read: %v; its last objects stay in force", bare(err)),
	})
}

// hidden says whether the file may still be there, unseen.
func (w *walk) hidden(rel string) bool {
	return slices.ContainsFunc(w.closed, func(dir string) bool {
		return rel == dir || strings.HasPrefix(rel, dir+"/")
	})
}

func isManifest(name string) bool {
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

func readFile(full string) ([]byte, error) {
	f, err := os.Open(full)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("it is larger than %d MiB", maxFile>>20)
	}
	return data, err
}

// bare returns the error without the path, which the problem has already.
func bare(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}
