package ipt

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

const (
	// lockWait is the default of Conn.LockWait.
	lockWait = 5 * time.Second
	// drainWait bounds how long the output of a program is read after its exit, in
	// case a child process keeps the pipe open. On an overloaded node reading took
	// more than a second; with a shorter wait a successful restore would count as
	// refused.
	drainWait = 5 * time.Second
)

// Conn runs the programs of one variant and family, in the network namespace of the
// calling thread.
type Conn struct {
	// LockWait bounds how long a program waits for the xtables lock, in whole
	// seconds. The nft variant has no lock.
	LockWait time.Duration

	family                 Family
	variant                Variant
	program, save, restore string // paths

	sums map[string]uint32 // checksums of legacy tables when last read; 0 if we have written since
}

// Open finds the programs of a variant and family in the PATH, by their full names
// or, on a host that has a single variant, by their short names. The error is
// [ErrMissing] if there are none.
func Open(ctx context.Context, f Family, v Variant) (*Conn, error) {
	reason := fmt.Errorf("find programs %s-save and %[1]s-restore: %w", Name(f, v), ErrMissing)
	for _, name := range []string{Name(f, v), program(f)} {
		c := &Conn{LockWait: lockWait, family: f, variant: v, sums: map[string]uint32{}}
		var err error
		c.program, err = exec.LookPath(name)
		if err == nil {
			c.save, err = exec.LookPath(name + "-save")
		}
		if err == nil {
			c.restore, err = exec.LookPath(name + "-restore")
		}
		if err != nil {
			continue
		}
		version, _, err := run(ctx, nil, c.program, "--version")
		if err != nil {
			return nil, err
		}
		variant, number := parseVersion(string(version))
		switch {
		case variant != v:
		case slices.Compare(number[:], []int{1, 6, 2}) < 0: // the first version whose iptables-restore has option -w
			reason = fmt.Errorf("use %s: version %q is too old, install 1.6.2 or later", c.program, bytes.TrimSpace(version))
		default:
			return c, nil
		}
	}
	return nil, reason
}

// parseVersion parses text such as "iptables v1.8.9 (nf_tables)". Releases before
// 1.8 have the legacy variant only and do not name it. The variant is 0 if the text
// cannot be parsed.
func parseVersion(s string) (v Variant, number [3]int) {
	var name, variant string
	if n, _ := fmt.Sscanf(s, "%s v%d.%d.%d (%s", &name, &number[0], &number[1], &number[2], &variant); n < 4 {
		return 0, number
	}
	return map[string]Variant{"nf_tables)": NFT, "legacy)": Legacy, "": Legacy}[variant], number
}

// Save runs iptables-save.
func (c *Conn) Save(ctx context.Context) ([]Table, error) {
	output, _, err := run(ctx, nil, c.save)
	if err != nil {
		return nil, err
	}
	tables, err := parse(output)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", filepath.Base(c.save), err)
	}
	return tables, nil
}

// Counters runs iptables-save.
func (c *Conn) Counters(ctx context.Context, table string, f func(chain, rule string, packets uint64)) error {
	output, _, err := run(ctx, nil, c.save, "-c", "-t", table)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(output) {
		counts, rest, isRule := strings.Cut(strings.TrimSuffix(string(line), "\n"), "] -A ")
		packets, _, isCount := strings.Cut(strings.TrimPrefix(counts, "["), ":")
		n, err := strconv.ParseUint(packets, 10, 64)
		if isRule && isCount && err == nil {
			chain, rule, _ := strings.Cut(rest, " ")
			f(chain, rule, n)
		}
	}
	return nil
}

// Rules returns the rules of one chain, in the format of [Chain], and whether there
// is such a chain.
func (c *Conn) Rules(ctx context.Context, table, chain string) (rules []string, found bool, err error) {
	wait := strconv.Itoa(max(1, int(c.LockWait/time.Second)))
	output, stderr, err := run(ctx, nil, c.program, "-w", wait, "-t", table, "-S", chain)
	for _, absent := range []string{"No chain/target/match by that name", "does not exist", "incompatible"} {
		if strings.Contains(stderr, absent) {
			return nil, false, nil
		}
	}
	if err != nil {
		return nil, false, err
	}
	for line := range strings.Lines(string(output)) {
		if rule, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "-A "+chain+" "); ok {
			rules = append(rules, rule)
		}
	}
	return rules, true, nil
}

// Restore runs iptables-restore. Its input is a file in memory that is complete
// before the program starts, so that the restore completes even if this process is
// killed.
func (c *Conn) Restore(ctx context.Context, input []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	clear(c.sums)
	var file *os.File
	fd, err := unix.MemfdCreate("iptables-restore", unix.MFD_CLOEXEC)
	if err == nil {
		file = os.NewFile(uintptr(fd), "iptables-restore")
		defer file.Close()
		_, err = file.WriteAt(input, 0)
	}
	if err != nil {
		return fmt.Errorf("write the input of %s: %w", filepath.Base(c.restore), err)
	}
	wait := max(1, int(c.LockWait/time.Second))
	_, stderr, err := run(context.WithoutCancel(ctx), file, c.restore, "--noflush", "-w", strconv.Itoa(wait))
	if err == nil {
		return nil
	}
	if strings.Contains(stderr, "holding the xtables lock") {
		return fmt.Errorf("%w, for more than %d s: %w", ErrLocked, wait, err)
	}
	if m := linePattern.FindStringSubmatch(stderr); m != nil {
		if n, _ := strconv.Atoi(m[1]); n > 0 {
			refused := &RestoreError{Line: n, Err: err}
			if lines := bytes.SplitN(input, []byte("\n"), n+1); n <= len(lines) {
				refused.Text = string(bytes.TrimSpace(lines[n-1]))
			}
			return refused
		}
	}
	return err
}

var linePattern = regexp.MustCompile(`\bline:? (\d+)`)

// run runs a program and returns its output. If the program fails, run also returns
// what it printed to standard error, on one line; the error includes it. The
// program runs in its own process group, so that a signal to ours, such as Ctrl-C,
// does not reach it.
func run(ctx context.Context, input io.Reader, path string, args ...string) (output []byte, stderr string, err error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = drainWait
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdin = input
	output, err = cmd.Output()
	if err == nil {
		return output, "", nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		stderr = strings.Join(strings.Fields(string(exit.Stderr)), " ")
	}
	err = fmt.Errorf("run %s: %w", strings.Join(append([]string{filepath.Base(path)}, args...), " "), cmp.Or(ctx.Err(), err))
	if stderr != "" {
		err = fmt.Errorf("%w: %s", err, stderr)
	}
	return nil, stderr, err
}

// requestNFTables sends a request to nf_tables and returns the messages of the
// answer; none if the kernel has no nf_tables. The names are those of a table, and of a
// chain in it.
func requestNFTables(kind, flags uint16, f Family, names ...string) ([]netlink.Attrs, error) {
	answers, err := netlink.Once(context.Background(), unix.NETLINK_NETFILTER, func(c *netlink.Conn) {
		c.Request(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, netlink.Netfilter(f, 0), names...)
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	return answers, err
}

func (c *Conn) Stamp(_ context.Context, thorough bool) (Stamp, error) {
	if c.variant == Legacy {
		return c.legacyStamp(thorough)
	}
	generation, err := Generation()
	return Stamp{Generation: generation}, err
}

// Generation returns a number that every transaction of nf_tables increments. The kernel
// never uses 0.
func Generation() (uint32, error) {
	answers, err := requestNFTables(unix.NFT_MSG_GETGEN, unix.NLM_F_ACK, 0)
	if err != nil || len(answers) == 0 {
		return 0, fmt.Errorf("read the generation of nf_tables: %w", cmp.Or(err, errors.New("no answer")))
	}
	return uint32(answers[0].Number(unix.NFTA_GEN_ID)), nil
}

func (c *Conn) Uses(context.Context) (Uses, error) { return CountUses(c.family, c.variant) }

// CountUses returns the same as [Interface.Uses], on hosts without programs too. The
// only capability it needs is CAP_NET_ADMIN.
func CountUses(f Family, v Variant) (Uses, error) {
	if v == Legacy {
		return legacyUses(f)
	}
	chains, err := requestNFTables(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, f)
	if err != nil {
		return nil, fmt.Errorf("list chains of nf_tables: %w", err)
	}
	uses := Uses{}
	for _, c := range chains {
		uses.add(c.Text(unix.NFTA_CHAIN_TABLE), c.Text(unix.NFTA_CHAIN_NAME), int(c.Number(unix.NFTA_CHAIN_USE)))
	}
	return uses, nil
}

// Packets searches the encoded rules for the comment, which they contain verbatim.
func (c *Conn) Packets(_ context.Context, table, chain, comment string) (n uint64, err error) {
	if c.variant == Legacy {
		return legacyPackets(c.family, table, chain, comment)
	}
	rules, err := requestNFTables(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, c.family, table, chain)
	if err != nil {
		return 0, fmt.Errorf("list the rules of chain %s in table %s: %w", chain, table, err)
	}
	for _, r := range rules {
		for _, x := range r.Get(unix.NFTA_RULE_EXPRESSIONS).All() {
			if x.Text(unix.NFTA_EXPR_NAME) == "counter" && bytes.Contains(r, []byte(comment)) {
				n += x.Number(unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS)
			}
		}
	}
	return n, nil
}
