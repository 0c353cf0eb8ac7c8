package manifest

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// maxFile is the size above which a file is not taken for a manifest.
const maxFile = 64 << 20

// grace is how long a file must be missing before it is taken for deleted.
// Editors put a file aside and write a new one, tools move it, and a folder
// that is removed loses its files one by one before it is gone itself.
const grace = 100 * time.Millisecond

// settled is how long a file must stay as it is that was written in place and has become
// shorter: half a file may be a valid one, with half of the objects. One that another
// takes the place of, by renaming, is whole.
const settled = time.Second

// file is a manifest file as it was last read.
type file struct {
	info fs.FileInfo
	sum  [sha256.Size]byte
	last reading
	size int // when it was last read and was not empty
	// short is what a shorter file has now, and since when.
	short      [sha256.Size]byte
	shortSince time.Time
	// held are objects of earlier readings that stay in force, because the last
	// one was not complete and may have missed them.
	held    []entry
	missing time.Time // when the file was first not found; zero: it is there
}

// directory is one that was listed.
type directory struct {
	path   string
	info   fs.FileInfo
	linked bool // a symbolic link led there
}

// folder is what is known of the files below a directory.
type folder struct {
	dir        string
	files      map[string]*file // by slash-separated path below dir
	dirs       []directory      // that the last scan has listed
	unreadable []Problem        // directories and files that it could not read
	pending    bool             // a file is missing or shorter, and not yet for long
}

func newFolder(dir string) *folder {
	return &folder{dir: filepath.Clean(dir), files: map[string]*file{}}
}

// scan reads the files that look changed, or all. An error means that the folder
// itself cannot be read; nothing is forgotten then.
func (f *folder) scan(all bool) error {
	f.dirs, f.unreadable, f.pending = nil, nil, false
	found := map[string]fs.FileInfo{}
	if err := f.list("", found, false); err != nil {
		return err
	}
	// The folder may have gone while it was listed.
	if _, err := os.Stat(f.dir); err != nil {
		return err
	}
	for rel, info := range found {
		known := f.files[rel]
		// Two writes within one tick of the clock can leave the same time: then there were events.
		if all || known == nil || !known.missing.IsZero() || !os.SameFile(known.info, info) ||
			known.info.Size() != info.Size() || !known.info.ModTime().Equal(info.ModTime()) {
			f.reload(rel, info)
		}
	}
	for rel := range f.files {
		unseen := func(p Problem) bool { return rel == p.File || strings.HasPrefix(rel, p.File+"/") }
		if found[rel] == nil && !slices.ContainsFunc(f.unreadable, unseen) {
			f.miss(rel)
		}
	}
	return nil
}

func (f *folder) full(rel string) string { return filepath.Join(f.dir, filepath.FromSlash(rel)) }

// miss forgets a file that is not there, if it has not been there for a while.
func (f *folder) miss(rel string) {
	known := f.files[rel]
	switch {
	case known == nil:
		return
	case known.missing.IsZero():
		*known = file{held: known.inForce(), last: reading{problems: known.last.problems}, missing: time.Now()}
	case time.Since(known.missing) >= grace:
		delete(f.files, rel)
		return
	}
	f.pending = true
}

// reload reads one file. When that leaves gaps, what the file held before stays
// in force.
func (f *folder) reload(rel string, info fs.FileInfo) {
	known := f.files[rel]
	var data []byte
	err := fmt.Errorf("it is larger than %d MiB", maxFile>>20)
	if info.Size() <= maxFile {
		data, err = os.ReadFile(f.full(rel))
	}
	if errors.Is(err, fs.ErrNotExist) {
		f.miss(rel)
		return
	}
	sum := sha256.Sum256(data)
	if known != nil && err == nil && known.sum == sum {
		known.info = info
		return
	}
	if known != nil && err == nil && known.mayGrow(info, data, sum) {
		f.pending = true
		return
	}
	next := &file{info: info, size: len(data)}
	var before []entry
	if known != nil {
		before = known.inForce()
		if len(data) == 0 {
			next.size = known.size
		}
	}
	switch {
	case err != nil:
		next.last.problems = []Problem{{File: rel, Reason: fmt.Sprintf("cannot be read: %v", bare(err))}}
	case len(data) == 0 && len(before) > 0:
		// This is how a file looks between being opened and being written.
		next.last.problems = []Problem{{
			File: rel, Reason: "is empty; its last objects stay in force until it is written again or removed",
		}}
	default:
		next.sum, next.last = sum, read(rel, data)
	}
	if !next.last.complete {
		next.held = addMissing(next.last.entries, before)[len(next.last.entries):]
	}
	f.files[rel] = next
}

// mayGrow reports whether a file may be one that somebody is writing.
func (f *file) mayGrow(info fs.FileInfo, data []byte, sum [sha256.Size]byte) bool {
	switch {
	case len(data) == 0 || len(data) >= f.size || !f.missing.IsZero() || !os.SameFile(f.info, info):
		return false
	case f.short != sum:
		f.short, f.shortSince = sum, time.Now()
	}
	return time.Since(f.shortSince) < settled
}

func (f *file) inForce() []entry { return slices.Concat(f.last.entries, f.held) }

// addMissing adds to a list the objects that it does not have.
func addMissing(list, others []entry) []entry {
	have := map[objectID]bool{}
	for _, e := range list {
		have[e.id] = true
	}
	list = slices.Clip(list)
	for _, e := range others {
		if !have[e.id] {
			have[e.id] = true
			list = append(list, e)
		}
	}
	return list
}

// merged returns the objects in force and all problems, unsorted. Of two objects
// with the same identity the first is used and the other reported.
func (f *folder) merged() ([]entry, []Problem) {
	var entries, held []entry
	var gone [][]entry // what missing files held
	problems := slices.Clone(f.unreadable)
	first := map[objectID]Problem{}
	for _, rel := range slices.Sorted(maps.Keys(f.files)) {
		known := f.files[rel]
		problems = append(problems, known.last.problems...)
		if known.missing.IsZero() {
			held = append(held, known.held...)
		} else {
			gone = append(gone, known.held)
		}
		for _, e := range known.last.entries {
			if earlier, twice := first[e.id]; twice {
				earlier.Object = ""
				e.from.Reason = fmt.Sprintf("is ignored, the same object is in %v", earlier)
				problems = append(problems, e.from)
				continue
			}
			first[e.id] = e.from
			entries = append(entries, e)
		}
	}
	// An object that is held gives way to one that is really there, without a
	// word: it may have moved to another file. What was there a moment ago comes first.
	slices.Reverse(gone)
	return addMissing(entries, slices.Concat(append(gone, held)...)), problems
}

// list finds the manifest files of one directory, by its slash-separated path
// below the folder, and of all below it. The error is that of the directory itself.
func (f *folder) list(rel string, found map[string]fs.FileInfo, linked bool) error {
	info, err := os.Stat(f.full(rel))
	if err != nil {
		return err
	}
	// Symbolic links may lead round in circles. Without one, no directory comes up twice.
	if slices.ContainsFunc(f.dirs, func(d directory) bool { return (linked || d.linked) && os.SameFile(d.info, info) }) {
		return nil
	}
	f.dirs = append(f.dirs, directory{f.full(rel), info, linked})
	children, err := os.ReadDir(f.full(rel))
	if err != nil {
		return err
	}
	for _, child := range children {
		if strings.HasPrefix(child.Name(), ".") {
			continue
		}
		rel := path.Join(rel, child.Name())
		if err := f.child(rel, found, linked || child.Type()&fs.ModeSymlink != 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.unreadable = append(f.unreadable, Problem{
				File: rel, Reason: fmt.Sprintf("cannot be read: %v; its last objects stay in force", bare(err)),
			})
		}
	}
	return nil
}

func (f *folder) child(rel string, found map[string]fs.FileInfo, linked bool) error {
	manifest := slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(rel))
	info, err := os.Stat(f.full(rel)) // Links are followed: the files of a ConfigMap volume are links.
	switch {
	case err == nil && info.IsDir():
		return f.list(rel, found, linked)
	case !manifest:
		return nil
	case err == nil && info.Mode().IsRegular():
		found[rel] = info
	}
	return err
}

// bare returns the error without the path, which the problem has already.
func bare(err error) error { return cmp.Or(errors.Unwrap(err), err) }
