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

const (
	// maxFile is the size above which a file is not read.
	maxFile = 64 << 20

	// deletionGrace is how long a file must be missing before it counts as deleted.
	// Editors rename a file and write a new one, tools move files, and a folder that is
	// removed loses its files one by one before it is gone itself.
	deletionGrace = 100 * time.Millisecond

	// partialGrace is how long a file must not change that was written in place and has
	// become shorter: the first part of a file may be valid, with some of the objects. A
	// file that replaced another by renaming is complete.
	partialGrace = time.Second
)

// file is a manifest file as it was last read.
type file struct {
	info fs.FileInfo
	sum  [sha256.Size]byte
	last reading
	size int // when it was last read and was not empty
	// partial is the checksum of a shorter version of the file that may not be
	// complete, and partialSince is when it was first seen.
	partial      [sha256.Size]byte
	partialSince time.Time
	// retained are objects of earlier versions that stay in force, because parts of
	// the last version could not be read and may have had them.
	retained []entry
	missing  time.Time // when the file was first not found; zero if it exists
}

// directory is a directory that was listed.
type directory struct {
	path   string
	info   fs.FileInfo
	linked bool // it was reached through a symbolic link
}

// folder has the files below a directory.
type folder struct {
	dir        string
	files      map[string]*file // by slash-separated path below dir
	dirs       []directory      // the directories that the last scan listed
	unreadable []Problem        // the directories and files that it could not read
	pending    bool             // a file is missing or may be partial, and has to be checked again soon
}

func newFolder(dir string) *folder {
	return &folder{dir: filepath.Clean(dir), files: map[string]*file{}}
}

// scan reads the files that seem to have changed, or all files. It returns an error if
// the folder itself cannot be read, and then keeps everything.
func (f *folder) scan(all bool) error {
	f.dirs, f.unreadable, f.pending = nil, nil, false
	found := map[string]fs.FileInfo{}
	if err := f.list("", found, false); err != nil {
		return err
	}
	// If the folder was removed while it was listed, its files only seem to be deleted.
	if _, err := os.Stat(f.dir); err != nil {
		return err
	}
	for rel, info := range found {
		known := f.files[rel]
		// Two writes within one clock tick can leave the same size and time. The events of
		// the second one make the caller pass all.
		if all || known == nil || !known.missing.IsZero() || !os.SameFile(known.info, info) ||
			known.info.Size() != info.Size() || !known.info.ModTime().Equal(info.ModTime()) {
			f.reload(rel, info)
		}
	}
	for rel := range f.files {
		unseen := func(p Problem) bool { return rel == p.File || strings.HasPrefix(rel, p.File+"/") }
		if found[rel] == nil && !slices.ContainsFunc(f.unreadable, unseen) {
			f.markMissing(rel)
		}
	}
	return nil
}

func (f *folder) full(rel string) string { return filepath.Join(f.dir, filepath.FromSlash(rel)) }

// markMissing records that a file was not found, and forgets it after deletionGrace.
func (f *folder) markMissing(rel string) {
	known := f.files[rel]
	switch {
	case known == nil:
		return
	case known.missing.IsZero():
		*known = file{retained: known.inForce(), last: reading{problems: known.last.problems}, missing: time.Now()}
	case time.Since(known.missing) >= deletionGrace:
		delete(f.files, rel)
		return
	}
	f.pending = true
}

// reload reads one file. Objects of the last version stay in force if they may be in
// parts of the new one that cannot be read.
func (f *folder) reload(rel string, info fs.FileInfo) {
	known := f.files[rel]
	var data []byte
	err := fmt.Errorf("it is larger than %d MiB", maxFile>>20)
	if info.Size() <= maxFile {
		data, err = os.ReadFile(f.full(rel))
	}
	if errors.Is(err, fs.ErrNotExist) {
		f.markMissing(rel)
		return
	}
	sum := sha256.Sum256(data)
	if known != nil && err == nil && known.sum == sum {
		known.info = info
		return
	}
	if known != nil && err == nil && known.maybePartial(info, data, sum) {
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
		next.last.problems = []Problem{{File: rel, Reason: fmt.Sprintf("cannot be read: %v", withoutPath(err))}}
	case len(data) == 0 && len(before) > 0:
		// A program that rewrites a file may have truncated it and not written it yet.
		next.last.problems = []Problem{{
			File: rel, Reason: "is empty; its last objects stay in force until it is written again or removed",
		}}
	default:
		next.sum, next.last = sum, read(rel, data)
	}
	if !next.last.complete {
		next.retained = addMissing(next.last.entries, before)[len(next.last.entries):]
	}
	f.files[rel] = next
}

// maybePartial reports whether a new version of a file may not be complete yet.
func (f *file) maybePartial(info fs.FileInfo, data []byte, sum [sha256.Size]byte) bool {
	switch {
	case len(data) == 0 || len(data) >= f.size || !f.missing.IsZero() || !os.SameFile(f.info, info):
		return false
	case f.partial != sum:
		f.partial, f.partialSince = sum, time.Now()
	}
	return time.Since(f.partialSince) < partialGrace
}

func (f *file) inForce() []entry { return slices.Concat(f.last.entries, f.retained) }

// addMissing returns a list with the other objects that it does not have.
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

// merged returns the objects in force and all problems, unsorted. If an object is there
// twice, the first one is used, and the other is a problem.
func (f *folder) merged() ([]entry, []Problem) {
	var entries, retained []entry
	var missing [][]entry // the objects of missing files
	problems := slices.Clone(f.unreadable)
	first := map[objectID]Problem{}
	for _, rel := range slices.Sorted(maps.Keys(f.files)) {
		known := f.files[rel]
		problems = append(problems, known.last.problems...)
		if known.missing.IsZero() {
			retained = append(retained, known.retained...)
		} else {
			missing = append(missing, known.retained)
		}
		for _, e := range known.last.entries {
			if earlier, duplicate := first[e.id]; duplicate {
				earlier.Object = ""
				e.from.Reason = fmt.Sprintf("is ignored, the same object is in %v", earlier)
				problems = append(problems, e.from)
				continue
			}
			first[e.id] = e.from
			entries = append(entries, e)
		}
	}
	// A retained object that another file has now is no problem: it was moved. Objects of
	// missing files, which existed a moment ago, come before other retained ones.
	slices.Reverse(missing)
	return addMissing(entries, slices.Concat(append(missing, retained)...)), problems
}

// list finds the manifest files in a directory, given by its slash-separated path below
// the folder, and in its subdirectories. It returns an error if the directory itself
// cannot be read.
func (f *folder) list(rel string, found map[string]fs.FileInfo, linked bool) error {
	info, err := os.Stat(f.full(rel))
	if err != nil {
		return err
	}
	// Symbolic links may form a cycle. Without links, no directory is listed twice.
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
				File: rel, Reason: fmt.Sprintf("cannot be read: %v; its last objects stay in force", withoutPath(err)),
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

// withoutPath returns an error of package os without the path, which the caller adds.
func withoutPath(err error) error { return cmp.Or(errors.Unwrap(err), err) }
