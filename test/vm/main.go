//go:build linux

// Command vm runs a program on another kernel, in a virtual machine. See README.md in this
// directory.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"time"

	"sluice/test/vm/guest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	status, err := run(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		status = 1
	}
	os.Exit(status)
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func run(ctx context.Context) (int, error) {
	var add, env list
	kernel := flag.String("kernel", "6.1", "boot this `version`: "+strings.Join(guest.Kernels(), ", "))
	test := flag.String("test", "", "compile and run the tests of this `package`, with the given arguments")
	results := flag.String("results", "", "copy the contents of /results to this `directory`")
	timeout := flag.Duration("timeout", guest.DefaultTimeout, "stop the guest after this time")
	flag.Var(&add, "add", "copy this `path`, below the current directory, to the guest; may be given several times")
	flag.Var(&env, "env", "set `KEY=value` for the command; may be given several times")
	flag.Parse()

	cache, err := guest.Open(func(what string) { fmt.Fprintln(os.Stderr, "vm:", what) })
	if err != nil {
		return 0, err
	}
	j := guest.Job{Kernel: *kernel, Command: flag.Args(), Env: env, Results: *results, Output: os.Stdout, Timeout: *timeout}
	dir, err := os.MkdirTemp("", "vm-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	switch {
	case *test != "":
		program := filepath.Join(dir, "tests")
		err = errors.Join(guest.Compile(ctx, *test, program), j.RunTests(*test, program))
	case len(j.Command) == 0:
		err = errors.New("nothing to run: give a command after --, or a package with --test")
	case isFile(j.Command[0]):
		add = append(add, j.Command[0])
	}
	for _, p := range add {
		if !filepath.IsLocal(p) {
			err = errors.Join(err, fmt.Errorf("add %s to the guest: the path is not below the current directory", p))
		}
		j.Add(path.Join(guest.Src, filepath.ToSlash(p)), p)
	}
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	status, err := cache.Run(ctx, j)
	fmt.Fprintf(os.Stderr, "vm: kernel %s, exit status %d, %v\n", *kernel, status, time.Since(begin).Round(time.Second/10))
	return status, err
}

func isFile(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.Mode().IsRegular()
}
