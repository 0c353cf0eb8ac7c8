package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// release describes what to build.
type release struct {
	version string
	commit  string
	date    time.Time // of the commit; the modification time of all files
	source  string    // URL of the repository; may be empty
	ldflags string    // of the daemon's build

	root     string // directory of the repository
	output   string
	packages string   // directory of Debian packages, by architecture
	arches   []string // as in GOARCH
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		stop()
		os.Exit(1)
	}
}

// run builds what the arguments request.
func run(ctx context.Context, args []string) error {
	r := &release{}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&r.version, "version", "", "version, which is the first tag, like v1.2.3")
	flags.StringVar(&r.commit, "commit", "", "commit that is built, 40 digits")
	date := flags.String("date", "", "time of the commit, like 2026-01-02T03:04:05Z")
	flags.StringVar(&r.source, "source", "", "URL of the repository, for annotations and provenance")
	flags.StringVar(&r.ldflags, "ldflags", "", "-ldflags of go build")
	flags.StringVar(&r.root, "root", "../..", "folder of the repository")
	flags.StringVar(&r.output, "output", "../../dist", "folder to write to")
	flags.StringVar(&r.packages, "packages", "", "folder of Debian packages, amd64 and arm64; they are downloaded if it has none (default OUTPUT/packages)")
	arches := flags.String("arch", "amd64,arm64", "architectures")
	push := flags.String("push", "", "repository to push to, like registry.example/sluice")
	if err := flags.Parse(args); err != nil {
		return err
	}
	r.arches = strings.Split(*arches, ",")
	if err := r.check(*date); err != nil {
		return err
	}
	if r.packages == "" {
		r.packages = filepath.Join(r.output, "packages")
	}
	built, err := r.build(ctx)
	if err != nil {
		return err
	}
	if err := built.write(); err != nil {
		return err
	}
	if *push != "" {
		if err := built.push(ctx, *push); err != nil {
			return err
		}
	}
	digests, err := built.digests()
	for _, tag := range r.tags() {
		fmt.Printf("%s:%s@%s\n", cmp.Or(*push, "sluice"), tag, digests[tag])
	}
	return err
}

var (
	tagged = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}$`)
	hashed = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// check rejects settings that would produce an untraceable release.
func (r *release) check(date string) (err error) {
	if !tagged.MatchString(r.version) {
		return fmt.Errorf("--version %q: want what can be a tag, like v1.2.3", r.version)
	}
	if !hashed.MatchString(r.commit) {
		return fmt.Errorf("--commit %q: want 40 digits", r.commit)
	}
	for _, arch := range r.arches {
		if arch != "amd64" && arch != "arm64" {
			return fmt.Errorf("--arch %q: want amd64 or arm64", arch)
		}
	}
	if r.date, err = time.Parse(time.RFC3339, date); err != nil {
		return fmt.Errorf("--date %q: want a time like 2026-01-02T03:04:05Z", date)
	}
	r.date = r.date.UTC()
	return nil
}
