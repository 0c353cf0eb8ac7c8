package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestManyFilesGo empties a folder of very many files. What they had is kept for a moment, at a cost that
// follows their number.
func TestManyFilesGo(t *testing.T) {
	bytes := func(files int) uint64 {
		dir := t.TempDir()
		for i := range files {
			text := strings.ReplaceAll(serviceText, "name: web", fmt.Sprint("name: web-", i))
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i, ".yaml")), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f := newFolder(dir)
		for _, empty := range []bool{false, true} {
			if empty {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.scan(true); err != nil {
				t.Fatal(err)
			}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if entries, problems := f.merged(); len(entries) != files || len(problems) > 0 {
			t.Errorf("%d objects and problems %v a moment after %d files went", len(entries), problems, files)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	few, many := bytes(250), bytes(1000)
	t.Logf("%d bytes are allocated for 250 files, %d for 1,000", few, many)
	if many > 6*few {
		t.Errorf("%d bytes are allocated for 250 files, %d for 1,000; want four times as many", few, many)
	}
}
