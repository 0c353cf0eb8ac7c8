package render

import (
	"fmt"
	"os"
	"strings"

	"sluice/test/cluster/peers/figures"
)

// Write writes the page and the pictures of a report beside its JSON file,
// which is written too.
func Write(r *figures.Report, path string) error {
	if err := r.Write(path); err != nil {
		return err
	}
	stem := strings.TrimSuffix(path, ".json")
	if err := os.WriteFile(stem+".md", []byte(Markdown(r)), 0o644); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return draw(r, stem)
}
