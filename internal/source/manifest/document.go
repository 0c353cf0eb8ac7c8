package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// document is one document of a file.
type document struct {
	text   []byte
	number int // counted from 1
	first  int // line of the file on which text begins
	begin  int // line of the file on which the content begins
	err    error

	// lines has the lines of all fields. It is filled when a line is first needed:
	// most documents have no problems.
	lines      map[string]int
	duplicates []string // fields that are set twice
}

// split splits a file into its documents, without those that are empty.
func split(file string, data []byte) []*document {
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	data = bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))
	if path.Ext(file) == ".json" {
		return splitJSON(data)
	}
	return splitYAML(data)
}

// splitYAML splits a file at its document markers before anything is parsed, so that one
// document with a syntax error does not affect the others.
func splitYAML(data []byte) []*document {
	var docs []*document
	var cur *document
	number := 0
	for line := range bytes.Lines(data) {
		number++
		content := line
		if isMarker(line, "---") {
			cur, content = nil, line[3:]
		}
		if cur == nil {
			cur = &document{first: number}
		}
		cur.text = append(cur.text, line...)
		content = bytes.TrimSpace(content)
		switch {
		case isMarker(line, "..."):
			cur = nil
		case cur.begin > 0 || len(content) == 0 || content[0] == '#' || content[0] == '%': // % is a directive
		default:
			cur.begin, cur.number = number, len(docs)+1
			docs = append(docs, cur)
		}
	}
	return docs
}

// isMarker reports whether a line begins with a marker, followed by a space or nothing.
func isMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\n", rune(rest[0])))
}

// splitJSON splits a file of consecutive JSON values. It stops after a value with a
// syntax error.
func splitJSON(data []byte) []*document {
	var docs []*document
	line := 1
	skip := func(data []byte, n int) []byte {
		line += bytes.Count(data[:n], []byte("\n"))
		return data[n:]
	}
	for rest := bytes.TrimRight(data, " \t\n"); len(rest) > 0; {
		rest = skip(rest, len(rest)-len(bytes.TrimLeft(rest, " \t\n")))
		dec := json.NewDecoder(bytes.NewReader(rest))
		var raw json.RawMessage
		err := dec.Decode(&raw)
		d := &document{text: raw, number: len(docs) + 1, first: line, begin: line, err: err}
		docs = append(docs, d)
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			d.begin += bytes.Count(rest[:min(int(syntax.Offset), len(rest))], []byte("\n"))
		}
		if err != nil {
			break
		}
		rest = skip(rest, int(dec.InputOffset()))
	}
	return docs
}

// toJSON returns the document as JSON. A field of YAML that is set twice is in it once,
// and in d.duplicates; in JSON, the decoder finds such fields.
func (d *document) toJSON() ([]byte, error) {
	if d.err != nil || json.Valid(d.text) {
		return d.text, d.err
	}
	raw, err := yaml.YAMLToJSONStrict(d.text)
	if err == nil {
		return raw, nil
	}
	// The two differ only in repeated keys, which are errors in the strict conversion.
	raw, lenientErr := yaml.YAMLToJSON(d.text)
	if lenientErr != nil {
		return nil, lenientErr
	}
	if d.findLines(); len(d.duplicates) > 0 {
		return raw, nil
	}
	return nil, err
}

// parseError matches the errors of the YAML libraries, which count lines from the
// beginning of the document.
var parseError = regexp.MustCompile(`^(?:error converting YAML to JSON: )?(?:yaml: )?(?:unmarshal errors: )?(?:line (\d+): )?(.*)$`)

// explain returns the line of the file and the text of a syntax error.
func (d *document) explain(err error) (line int, reason string) {
	parts := parseError.FindStringSubmatch(strings.Join(strings.Fields(err.Error()), " "))
	line = d.begin
	if n, err := strconv.Atoi(parts[1]); err == nil {
		line = d.first + n - 1
	}
	return line, "does not parse: " + parts[2]
}

// findLines finds the lines of all fields, and the fields that are set twice.
func (d *document) findLines() {
	d.lines, d.duplicates = map[string]int{}, nil
	var tree yamlv3.Node
	if err := yamlv3.Unmarshal(d.text, &tree); err != nil || len(tree.Content) == 0 {
		return // The line of the document is used for every field.
	}
	var visit func(node *yamlv3.Node, at string)
	visit = func(node *yamlv3.Node, at string) {
		seen := map[string]bool{}
		for i, child := range node.Content {
			field, line := fmt.Sprintf("%s[%d]", at, i), child.Line
			if node.Kind == yamlv3.MappingNode {
				if i%2 == 0 {
					continue
				}
				key := node.Content[i-1]
				field, line = join(at, key.Value), key.Line
				if seen[field] {
					d.duplicates = append(d.duplicates, field)
				}
				seen[field] = true
			}
			d.lines[field] = d.first + line - 1
			visit(child, field)
		}
	}
	visit(tree.Content[0], "")
}

// line returns the line of the file with a field. If the field is missing, it is that of
// the closest parent that exists, or of the beginning of the document.
func (d *document) line(field string) int {
	if field != "" && d.lines == nil {
		d.findLines()
	}
	for field != "" {
		if line, ok := d.lines[field]; ok {
			return line
		}
		field = field[:max(0, strings.LastIndexAny(field, ".["))]
	}
	return d.begin
}

// join returns the path of a child field.
func join(parent, child string) string {
	if parent == "" || child == "" || child[0] == '[' {
		return parent + child
	}
	return parent + "." + child
}
