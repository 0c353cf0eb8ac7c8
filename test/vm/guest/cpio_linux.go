package guest

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// archive writes a cpio archive in the format of an initramfs. It keeps its first error.
type archive struct {
	w     io.Writer
	inode int
	dirs  map[string]bool // directories
	err   error
}

func newArchive(w io.Writer) *archive {
	return &archive{w: w, dirs: map[string]bool{".": true, "/": true}}
}

// The types of entries, as in st_mode.
const (
	cpioDir  = 0o040000
	cpioFile = 0o100000
	cpioLink = 0o120000
)

// entry writes one entry and its parent directories. Each has its own inode, because the kernel
// treats files with the same inode as hard links.
func (a *archive) entry(name string, mode fs.FileMode, kind int, content []byte) {
	if dir := path.Dir(name); !a.dirs[dir] {
		a.dirs[dir] = true
		a.entry(dir, 0o755, cpioDir, nil)
	}
	a.inode++
	a.write(name, a.inode, kind|int(mode.Perm()), content)
}

func (a *archive) write(name string, inode, mode int, content []byte) {
	if a.err != nil {
		return
	}
	const magic, links, zero = "070701", 1, 0
	head := fmt.Sprintf("%s%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00", magic, inode, mode,
		zero, zero, links, zero, len(content), zero, zero, zero, zero, len(name)+1, zero, name)
	for _, part := range [][]byte{[]byte(head), content} {
		if _, err := a.w.Write(append(part[:len(part):len(part)], make([]byte, -len(part)&3)...)); err != nil {
			a.err = err
		}
	}
}

// dir, file and link write an entry of that type. Names are relative to the root.
func (a *archive) dir(name string) { a.dirs[name] = true; a.entry(name, 0o755, cpioDir, nil) }

func (a *archive) file(name string, mode fs.FileMode, content []byte) {
	a.entry(name, mode, cpioFile, content)
}

func (a *archive) link(name, to string) { a.entry(name, 0o777, cpioLink, []byte(to)) }

// tree writes a file, or a directory with its contents.
func (a *archive) tree(name, from string) {
	err := filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, p) // p is below from
		return a.add(path.Join(name, filepath.ToSlash(rel)), p, d)
	})
	if a.err == nil {
		a.err = err
	}
}

// add writes the file, directory or link at a path.
func (a *archive) add(name, from string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	switch {
	case d.IsDir():
		if !a.dirs[name] {
			a.dir(name)
		}
	case d.Type() == fs.ModeSymlink:
		to, err := os.Readlink(from)
		if err != nil {
			return err
		}
		a.link(name, to)
	case d.Type().IsRegular():
		content, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		a.file(name, info.Mode(), content)
	default:
		return fmt.Errorf("pack %s: not a regular file, directory or symbolic link", from)
	}
	return a.err
}

// close writes the trailer.
func (a *archive) close() error {
	a.write("TRAILER!!!", 0, 0, nil)
	return a.err
}
